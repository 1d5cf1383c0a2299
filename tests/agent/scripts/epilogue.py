"""The example, and then rank 1 ends as `EPILOGUE` says, by a signal or with a status, before its script has ended."""

import os
import runpy
import signal
import sys
from pathlib import Path

runpy.run_path(str(Path(__file__).parents[3] / "agent" / "examples" / "text_ddp.py"), run_name="__main__")
if os.environ["RANK"] == "1":
    how = os.environ["EPILOGUE"]
    if how.startswith("SIG"):
        os.kill(os.getpid(), signal.Signals[how])
    sys.exit(int(how.split()[-1]))
