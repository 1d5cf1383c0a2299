#!/bin/bash
# One launcher on each node; the last node offers spares. A node that Slurm takes away with notice hands its ranks
# over; when the whole job is about to end, the state is kept, and the requeued job goes on with it, exactly.
#
#SBATCH --job-name=train
#SBATCH --nodes=3
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --no-kill
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail

RUNS=${RUNS:-$HOME/runs/$SLURM_JOB_NAME} # on a disk that all nodes share
SCRIPT=${SCRIPT:-train.py}
export STATE=$RUNS/$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}
export FIRST=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1):${PORT:-7000}
export PROCESSES=${SLURM_GPUS_ON_NODE:-8}
export YOCO_SECRET=$(openssl rand -hex 32)
kept=$(ls -t "$RUNS"/*/kept/meta.json 2>/dev/null | head -n 1 || true)
export RESUME=${kept:+--resume ${kept%/meta.json}}

srun --kill-on-bad-exit=0 bash -c '
if [ "$SLURM_NODEID" -lt $((SLURM_NNODES - 1)) ]; then
  exec python -m agent run --nnodes $((SLURM_NNODES - 1)) --node-rank "$SLURM_NODEID" --node "$SLURMD_NODENAME" \
    --rdzv-endpoint "$FIRST" --workers "$PROCESSES" --spares 0 --drain-on-sigterm 110 \
    --run-id "$SLURM_JOB_NAME-$SLURM_JOB_ID" --state-dir "$STATE" $RESUME "$@"
else
  exec python -m agent join --node "$SLURMD_NODENAME" --rdzv-endpoint "$FIRST" --spares "$PROCESSES"
fi' launcher "$SCRIPT" "$@"
