"""`manage.py demo`: the main job end to end, on this machine, with nothing mocked.

1. the service starts on loopback, with a demo customer, its contract and an agent key;
2. a training job of four workers and four spares runs under the agent; the service is killed for a while;
   one worker is killed with SIGKILL in mid-step, another leaves a GPU that is said to fail (simulated readings),
   an operator drains a third; spares take their places;
3. every report arrives exactly once, and each incident is judged from its evidence;
4. the same job runs without a fault, and the two results are compared bit for bit;
5. an earlier, *synthetic* contract year that falls short is closed; its credit is issued, approved and applied;
6. the guarantee reports are printed, the ledger is verified, and the pages are served.
"""

import secrets
import time
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from yoco.contracts.models import OrderKind
from yoco.contracts.services import order_record
from yoco.core.money import Money
from yoco.credits.models import Credit
from yoco.credits.services import credit_apply, credit_approve, credit_issue
from yoco.demo import seed
from yoco.demo.seed import DemoWorld, demo_seed
from yoco.demo.service import DemoService, require_free_port
from yoco.demo.synthetic import synthetic_reports
from yoco.demo.training import TrainingRun, compare
from yoco.guarantee.services import reports_accept, years_close
from yoco.incidents.models import AgentBoot, Incident, RawReport, ReportSource

STEPS = 150
STEP_S = 0.2
"""Steps last so long at least, so that three things can happen one after the other on any machine."""
SEED = 20260803
FAULT = "kill:rank=2,step=15,point=backward"
SICK_GPU = 3
DRAINED_RANK = 1
START_TIMEOUT_S = 180
RUN_TIMEOUT_S = 600
INCIDENT_TIMEOUT_S = 120
OUTAGE_S = 6


class Command(BaseCommand):
    help = "Trains under the agent with a killed worker, reports it, settles a short year, and serves the pages."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--no-serve", action="store_true", help="end after the report; status 0 only if all held")
        parser.add_argument("--port", type=int, default=8000, help="port of 127.0.0.1 for the service (8000)")
        parser.add_argument("--steps", type=int, default=STEPS, help=f"training steps ({STEPS})")

    def handle(self, *args: Any, **options: Any) -> None:
        if not settings.DATABASES["default"]["ENGINE"].endswith("sqlite3"):
            raise CommandError("The demo prints its passwords, so it runs only on SQLite. Unset DATABASE_URL.")
        if options["steps"] < STEPS:
            raise CommandError(f"Three incidents need {STEPS} steps: --steps must be at least {STEPS}.", returncode=2)
        require_free_port(options["port"])
        folder = Path(settings.BASE_DIR, "build", "demo", timezone.now().strftime("%Y%m%d-%H%M%S"))
        folder.mkdir(parents=True)

        self._step("1", "Database and demo customer")
        call_command("migrate", verbosity=0)
        world = demo_seed()
        self.stdout.write(f"  {world.contract.number} of {world.contract.organisation}, logs in {folder}")
        service = DemoService(port=options["port"], log=folder / "service.log")
        service.start()
        try:
            self._train(world, service, folder, options["steps"])
            self._settle(world)
            self._report(world)
            if options["no_serve"]:
                return
            self._serve(world, service)
        finally:
            service.stop()

    def _step(self, number: str, title: str) -> None:
        self.stdout.write(self.style.MIGRATE_HEADING(f"\n[{number}/6] {title}"))

    def _require(self, held: bool, what: str) -> None:
        if not held:
            raise CommandError(f"The demo failed: {what}")
        self.stdout.write(self.style.SUCCESS("  ok ") + what)

    def _train(self, world: DemoWorld, service: DemoService, folder: Path, steps: int) -> None:
        self._step("2", "A training job of 4 workers and 4 spares; the service is down for a while")
        run_id = f"demo-{secrets.token_hex(4)}"
        faulted = TrainingRun(name=run_id, folder=folder, steps=steps, seed=SEED)
        try:
            faulted.start(report_url=service.url, key=world.agent_key, faults=FAULT, step_s=STEP_S)
            self._wait_for_heartbeat(world, run_id, faulted)
            service.kill()
            self.stdout.write(f"  service killed with SIGKILL; rank 2 dies by SIGKILL in the backward pass ({FAULT})")
            time.sleep(OUTAGE_S)
            service.start()
            self.stdout.write(f"  service back after {OUTAGE_S} s")
            faulted.wait_for_incident("unplanned", timeout_s=INCIDENT_TIMEOUT_S)
            self.stdout.write(f"  GPU {SICK_GPU} reports an uncorrectable memory error (a simulated NVML reading)")
            faulted.gpus_write(uncorrected=SICK_GPU)
            faulted.wait_for_incident("preventive", timeout_s=INCIDENT_TIMEOUT_S)
            self.stdout.write(f"  agent drain --rank {DRAINED_RANK}, as an operator would before maintenance")
            self.stdout.write(
                "".join(f"    {line}\n" for line in faulted.drain(rank=DRAINED_RANK).splitlines()), ending=""
            )
            with_fault = faulted.finish(timeout_s=RUN_TIMEOUT_S)
        finally:
            faulted.stop()

        self._step("3", "Every report arrived exactly once, and the evidence decides")
        self._check_reports(world, run_id)
        self._check_incidents(world, run_id)

        self._step("4", "The same job without a fault")
        plain = TrainingRun(name=f"{run_id}-reference", folder=folder, steps=steps, seed=SEED)
        try:
            plain.start()
            without_fault = plain.finish(timeout_s=RUN_TIMEOUT_S)
        finally:
            plain.stop()
        self.stdout.write(f"     {'bit for bit':<12} {'with the fault':<32} | without")
        for item in compare(with_fault, without_fault):
            self._require(item.identical, f"{item.name:<12} {item.with_fault} | {item.without_fault}")

    def _wait_for_heartbeat(self, world: DemoWorld, run_id: str, run: TrainingRun) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if AgentBoot.objects.filter(contract=world.contract, run_id=run_id).exists():
                return
            if not run.running:
                break
            time.sleep(0.05)
        if not run.running:
            run.finish(timeout_s=1)
        raise CommandError(f"No heartbeat of {run_id} reached the service within {START_TIMEOUT_S} s; see {run.log}.")

    def _check_reports(self, world: DemoWorld, run_id: str) -> None:
        boot = AgentBoot.objects.get(contract=world.contract, run_id=run_id)
        sequence = list(
            RawReport.objects.filter(contract=world.contract, boot_id=boot.boot_id)
            .order_by("seq")
            .values_list("seq", flat=True)
        )
        self.stdout.write(f"  the agent issued {boot.last_seq} reports; stored sequence numbers: {sequence}")
        self._require(
            boot.last_seq >= 2 and sequence == list(range(1, boot.last_seq + 1)), "each report is stored exactly once"
        )
        self._require(boot.run_ended_at is not None, "the run said that it ended")

    def _check_incidents(self, world: DemoWorld, run_id: str) -> None:
        found = list(
            Incident.objects.select_related("placement")
            .filter(contract=world.contract, run__run_id=run_id)
            .order_by("started_at")
        )
        for incident in found:
            self.stdout.write(
                f"  {incident.kind} ({incident.signal}), rank {incident.rank}: step {incident.last_committed_step} "
                f"committed before, {incident.first_step_after} first after; {incident.state_bytes} bytes from a "
                f"{incident.state_source}; digest {incident.digest_sent} sent, {incident.digest_received} received"
            )
        kinds = [incident.kind for incident in found]
        self._require(kinds == ["unplanned", "preventive", "planned"], f"the service knows three incidents: {kinds}")
        killed, foreseen, asked = found
        self._require(
            killed.placement.outcome == "resolved",
            f"the killed worker counts as a failure resolved without loss ({killed.placement.rule})",
        )
        detail = foreseen.trigger_detail
        self._require(
            foreseen.placement.outcome == "resolved" and detail["source"] == "simulated",
            f"the rank that left a failing GPU counts, evidenced by {detail['rule']}: {detail['readings']} "
            f"({detail['source']}), as resolved without loss ({foreseen.placement.rule})",
        )
        self._require(
            asked.placement.outcome == "not_counted" and asked.state_source == "leaving_worker",
            f"the operator's drain is in the records and does not count ({asked.placement.rule})",
        )

    def _settle(self, world: DemoWorld) -> None:
        self._step("5", "An earlier contract year (synthetic incidents) falls short; its credit is issued and applied")
        year = world.earlier_year
        assert year.guaranteed_from is not None
        assert year.guaranteed_until is not None
        reports = list(synthetic_reports(start=year.guaranteed_from, end=year.guaranteed_until))
        outcome = reports_accept(
            contract=world.contract,
            key=None,
            reports=reports,
            received_at=timezone.now(),
            source=ReportSource.SYNTHETIC.value,
        )
        self._require(all(r.status == "created" for r in outcome.results), f"{len(reports)} synthetic reports stored")
        years_close(as_of=timezone.now(), actor=None)
        credit = Credit.objects.get(year=year)
        credit_issue(credit_id=credit.pk, actor=world.issuer, reason="Demo: the synthetic first year fell short.")
        credit_approve(credit_id=credit.pk, actor=world.approver)
        order = order_record(
            contract=world.contract,
            number=f"{world.contract.number}-R1",
            kind=OrderKind.RENEWAL,
            amount=Money(seed.RENEWAL_MINOR, seed.CURRENCY),
            ordered_on=timezone.localdate(),
            actor=world.issuer,
        )
        credit_apply(order_id=order.pk, actor=world.issuer)
        self.stdout.write(f"  issued by {world.issuer}, approved by {world.approver}, applied to order {order.number}")

    def _report(self, world: DemoWorld) -> None:
        self._step("6", "Guarantee reports")
        for year in (world.earlier_year, world.current_year):
            call_command("guarantee_report", world.contract.number, year=year.starts_on.isoformat(), stdout=self.stdout)
        call_command("ledger_verify", stdout=self.stdout)

    def _serve(self, world: DemoWorld, service: DemoService) -> None:
        self.stdout.write(
            f"\nThe pages: {service.url}  (Ctrl-C ends)\n"
            f"  customer         {seed.CUSTOMER}  {world.password}\n"
            f"  account manager  {seed.ISSUER}  {world.password}\n"
            f"  second manager   {seed.APPROVER}  {world.password}"
        )
        try:
            service.wait()
        except KeyboardInterrupt:
            self.stdout.write("\nStopped. `make demo` runs it again; `manage.py runserver` shows the pages only.")
