#!/bin/sh
# Backups of a PostgreSQL cluster that can be restored to any second since the oldest of them; docs/operations.md.
#
#   backup.sh archive PATH NAME   archive_command = 'BACKUPS=… backup.sh archive %p %f': keeps one file of the write-ahead log
#   backup.sh base                a base backup, over the connection that PGHOST, PGUSER and so on name
#   backup.sh flush               what was committed until now is in the archive when this ends
#   backup.sh restore TIME DATA   makes the cluster as it was at TIME, or at the archive's end (`latest`), in the empty
#                                 folder DATA; start PostgreSQL on it
#   backup.sh prune DAYS          removes base backups older than that, never the newest, and what only they needed
#
# BACKUPS names the folder of all of it, on another disk than the cluster's. Run it as the user that PostgreSQL runs as.
set -eu
: "${BACKUPS:?name the folder of the backups}"
export LC_ALL=C PATH="${PGBIN:+$PGBIN:}$PATH"

fail() {
    echo "backup.sh: $1" >&2
    exit 1
}

archive() {
    to=$BACKUPS/wal/$2.gz
    if [ -e "$to" ]; then # after a crash PostgreSQL may ask again for what it has
        gzip -dc "$to" | cmp -s - "$1" || fail "$to is there already, with another content"
        return
    fi
    mkdir -p "$BACKUPS/wal"
    gzip -1c "$1" >"$to.part"
    sync "$to.part"
    mv "$to.part" "$to"
    sync "$BACKUPS/wal"
}

fetch() { # NAME PATH: what PostgreSQL asks for while it recovers
    [ -e "$BACKUPS/wal/$1.gz" ] || exit 1
    gzip -dc "$BACKUPS/wal/$1.gz" >"$2"
}

base() {
    new=$BACKUPS/base/.new
    mkdir -p "$BACKUPS/base"
    rm -rf "$new"
    pg_basebackup --pgdata="$new" --format=tar --gzip --checkpoint=fast --no-password
    # Its name is when it had ended: the earliest second that it can be restored to.
    name=$(date -u -d '+1 second' +%Y-%m-%dT%H%M%SZ)
    mv "$new" "$BACKUPS/base/$name"
    sync "$BACKUPS/base"
    echo "$BACKUPS/base/$name"
}

flush() {
    # The record makes a segment to switch from where nothing was written since the last one.
    segment=$(psql -XAtqc "SELECT pg_create_restore_point('flush')" -c "SELECT pg_walfile_name(pg_switch_wal())" postgres | tail -n 1)
    for _ in $(seq 120); do
        [ -e "$BACKUPS/wal/$segment.gz" ] && return
        sleep 0.5
    done
    fail "$segment did not come within a minute: SELECT * FROM pg_stat_archiver says why"
}

restore() {
    ends=
    if [ "$1" != latest ]; then
        ends="recovery_target_time = '$(date -u -d "$1" '+%Y-%m-%d %H:%M:%S.%6N+00')'"
    fi
    target=$([ "$1" = latest ] || date -u -d "$1" +%Y-%m-%dT%H%M%SZ)
    name=$(ls "$BACKUPS/base" | awk -v target="$target" 'target == "" || $0 <= target { last = $0 } END { print last }')
    [ -n "$name" ] || fail "no base backup had ended at $target; there are: $(ls "$BACKUPS/base" | tr '\n' ' ')"
    [ -z "$(ls -A "$2" 2>/dev/null)" ] || fail "$2 is not empty"
    mkdir -p "$2"
    chmod 700 "$2"
    tar -xzf "$BACKUPS/base/$name/base.tar.gz" -C "$2"
    tar -xzf "$BACKUPS/base/$name/pg_wal.tar.gz" -C "$2/pg_wal"
    cp "$BACKUPS/base/$name/backup_manifest" "$2/"
    pg_verifybackup --quiet "$2"
    # Without archive_mode = off a rehearsal would write into the archive of the cluster that serves.
    cat >>"$2/postgresql.auto.conf" <<CONF
archive_mode = 'off'
restore_command = 'BACKUPS="$BACKUPS" "$(readlink -f "$0")" fetch %f "%p"'
recovery_target_action = 'promote'
$ends
CONF
    touch "$2/recovery.signal"
    echo "$2 is the base backup $name; started, PostgreSQL brings it to ${ends:-the end of the archive}"
}

prune() {
    newest=$(ls "$BACKUPS/base" | tail -n 1)
    [ -n "$newest" ] || fail "there is no base backup"
    limit=$(date -u -d "$1 days ago" +%Y-%m-%dT%H%M%SZ)
    for name in $(ls "$BACKUPS/base" | awk -v limit="$limit" -v newest="$newest" '$0 < limit && $0 != newest'); do
        rm -rf "${BACKUPS:?}/base/$name"
    done
    oldest=$(ls "$BACKUPS/base" | head -n 1)
    first=$(tar -xzOf "$BACKUPS/base/$oldest/base.tar.gz" backup_label | sed -n 's/^START WAL LOCATION: .*(file \([0-9A-F]*\)).*/\1/p')
    [ -n "$first" ] || fail "$BACKUPS/base/$oldest does not say what it needs"
    pg_archivecleanup -x .gz "$BACKUPS/wal" "$first"
}

case "${1-} $#" in
"archive 3") archive "$2" "$3" ;;
"fetch 3") fetch "$2" "$3" ;;
"base 1") base ;;
"flush 1") flush ;;
"restore 3") restore "$2" "$3" ;;
"prune 2") prune "$2" ;;
*)
    sed -n '2,11s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac
