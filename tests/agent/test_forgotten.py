"""What a script forgot to register is named before the first step, with the line to add."""

from pathlib import Path

import pytest

from tests.agent.launch import SCRIPTS, train

REFUSED = {
    "an optimizer": "second_optimizer holds parameters of a wrapped model; write agent.register(second_optimizer)",
    "an optimizer of another model": "teacher_optimizer steps in the loop; agent.wrap() its model and write",
    "a module": "main_optimizer holds 2 parameter(s) of temperature, which is not wrapped; make it a part of the model",
    "a scheduler": "warm_up drives a registered optimizer; write agent.register(…, scheduler=warm_up)",
    "a scaler": "loss_scaler scales gradients in the loop; write agent.register(…, scaler=loss_scaler)",
    "a generator": "noise is drawn from in the loop; write agent.register(…, generators=(noise,))",
    "a numpy generator": "numpy_noise is drawn from in the loop; write agent.register(…, generators=(numpy_noise,))",
    "a random.Random": "python_noise is drawn from in the loop; write agent.register(…, generators=(python_noise,))",
    "the loader's generator": "shuffler shuffles the data; write agent.register(…, generators=(shuffler,))",
    "a loader": "extra is read in the loop, and its position is not known; give its loader to agent.steps()",
    "an average": "teacher changes in the loop; agent.wrap() it if it is trained, or write agent.register(…",
    "zero_grad": "the gradients of model0.module.0.weight, model0.module.0.bias, ",
    "to count by agent.micro_batch": "counts them itself; decide by agent.micro_batch, which is 0 for the first",
}
WARNED = {
    "a parameter": "no registered optimizer updates model0.module.0.weight, though its gradients are computed",
    "a meter": "meter changes in the loop; if training depends on it, write agent.register(…, name=meter), or private=",
}


@pytest.mark.parametrize("forgotten", REFUSED)
def test_what_breaks_exactness_is_refused(tmp_path: Path, forgotten: str) -> None:
    script, arguments = SCRIPTS / "forgetful.py", ("--forget", forgotten)
    outcome = train(tmp_path, script=script, arguments=arguments, workers=1, spares=0, steps=4)
    assert outcome.status == 1
    assert REFUSED[forgotten] in outcome.output
    assert "rank 0 ended before training began" in outcome.output
    assert "warning: " not in outcome.output


@pytest.mark.parametrize("forgotten", WARNED)
def test_what_may_break_it_is_a_warning(tmp_path: Path, forgotten: str) -> None:
    script, arguments = SCRIPTS / "forgetful.py", ("--forget", forgotten)
    outcome = train(tmp_path, script=script, arguments=arguments, workers=2, spares=1, steps=4)
    assert outcome.status == 0, outcome.output
    assert outcome.output.count(f"agent: warning: {WARNED[forgotten]}") == 1


def test_a_script_that_forgets_nothing_is_not_bothered(tmp_path: Path) -> None:
    script, arguments = SCRIPTS / "forgetful.py", ("--forget", "nothing")
    outcome = train(tmp_path, script=script, arguments=arguments, workers=2, spares=1, steps=4)
    assert outcome.status == 0, outcome.output
    assert "warning" not in outcome.output
