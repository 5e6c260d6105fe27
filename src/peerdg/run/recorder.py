"""Write the results of a run as it trains: records, snapshots of weights, the deployed model."""

from collections.abc import Callable
from typing import Any, NoReturn

from peerdg.errors import Stopped
from peerdg.files import replace_atomically
from peerdg.models.stored import save_tensors
from peerdg.run.checkpoint import Background
from peerdg.run.folder import RunFolder
from peerdg.train.state import TrainState

ModelWriter = Callable[[TrainState, list[dict[str, Any]] | None], Callable[[], None] | None]


class Recorder:
    """Writes records, and the deployed model at every evaluation.

    Args:
        run: The run folder, held by this process.
        keep_snapshots: Keep the weights of the trained model at every evaluation.
        model_writer: Makes the work that writes the deployed model, given the state and the records
            of its evaluation; None in their place if it was not evaluated, so that the networks are
            as they are trained. Returns None if the model has learnt nothing yet.
    """

    def __init__(
        self,
        run: RunFolder,
        *,
        keep_snapshots: bool = False,
        model_writer: ModelWriter = lambda state, records: None,
    ) -> None:
        self.run = run
        self.keep_snapshots = keep_snapshots
        self.model_writer = model_writer
        self._background = Background()

    def epoch(
        self, state: TrainState, values: dict[str, Any], seconds: float, *, timed_steps: int
    ) -> None:
        """Write the mean loss terms of the epoch that just ended, and its time."""
        position = {"phase": state.phase, "epoch": state.epoch + 1}
        steps = state.step
        self.run.metrics.append({"kind": "epoch", **position, **state.take_means(), **values})
        timed = {} if timed_steps == steps else {"timed_steps": timed_steps}
        self.run.event("epoch", **position, steps=steps, seconds=round(seconds, 3), **timed)

    def evaluation(self, state: TrainState, records: list[dict[str, Any]]) -> None:
        """Write how each observed model did on each domain after `state.epoch` epochs."""
        position = {"phase": state.phase, "epoch": state.epoch}
        self.run.metrics.append(*({"kind": "evaluation", **position, **r} for r in records))
        if self.keep_snapshots:
            self._keep_snapshot(state)
        self._keep_model(state, records)

    def stopped(self, state: TrainState, signal_number: int | None) -> NoReturn:
        """Keep the model so far if none was kept yet; then stop.

        Raises:
            Stopped: With a message on how to resume or use the model.
        """
        self._background.wait()  # for the model of an evaluation, which must not be replaced
        if not self.run.model.exists():
            self._keep_model(state, None)
            self._background.wait()
        where = f"{state.phase} epoch {state.epoch + 1}, step {state.step}"
        message = f"Stopped in {where}. Saved; go on with:\n  peerdg resume {self.run.path}"
        if self.run.model.exists():
            message += f"\n  or use the model so far:\n  peerdg predict {self.run.path} IMAGE"
        raise Stopped(message, signal_number=signal_number)

    def close(self) -> None:
        """Wait until everything is written.

        Raises:
            OutputError: If the last model could not be written.
        """
        self._background.close()

    def _keep_model(self, state: TrainState, records: list[dict[str, Any]] | None) -> None:
        """Write the deployed model while training goes on."""
        write = self.model_writer(state, records)
        if write is not None:
            self._background.start(write)

    def _keep_snapshot(self, state: TrainState) -> None:
        with replace_atomically(self.run.snapshots / f"{state.epoch:06d}.safetensors") as file:
            save_tensors(file, state.method.trained.state_dict())
