"""The example, and then rank 1 loses its process with the signal that `EPILOGUE` names, before its script has ended."""

import os
import runpy
import signal
from pathlib import Path

runpy.run_path(str(Path(__file__).parents[3] / "agent" / "examples" / "text_ddp.py"), run_name="__main__")
if os.environ["RANK"] == "1":
    os.kill(os.getpid(), signal.Signals[os.environ["EPILOGUE"]])
