"""An agent in a process of its own that reports until it is killed.

    python writer.py SPOOL URL|- COUNT

Prints the id of each report once the call has returned, that is: once it is promised to be on disk.
"""

import sys
from pathlib import Path

from tests.reporting.facts import reporter, resolved

spool, url, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
agent = reporter(spool, None if url == "-" else url)
print("boot", agent.boot_id, flush=True)
for number in range(count):
    record = resolved(number)
    durable = agent.incident_resolved(record)
    print("wrote" if durable else "refused", record.incident_id, flush=True)
print("flushed", agent.flush(60.0) if url != "-" else None, flush=True)
agent.close()
