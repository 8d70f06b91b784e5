"""Where the trainings of a replicate start from: dense, rewound, or as a control.

`plans.sources` says where each part of a start comes from; here it is brought together
on the device: drawn anew from the seed, taken from the snapshot of the rewind step, or
read from the last checkpoint of the ticket before. What is no longer there is trained
again, to the same bits.
"""

import warnings

import numpy as np

from prunetrain import plans
from prunetrain.errors import InputError

_SEED_PURPOSES = (
    *("weights", "data_order", "reinit", "criterion", "fresh", "control"),
    "child",
)


class Starts:
    """Brings a lab to where the trainings of one replicate start, or go on, from.

    Args:
        lab: `Lab`.
        config: `Config`.
        replicate: number of the replicate.
        directory: work directory.
        display: told what has to be trained again.
    """

    def __init__(self, lab, config, replicate, directory, display):
        self._lab, self._config, self._replicate = lab, config, replicate
        self._directory, self._display = directory, display
        # Whether `lab.rewind` will be this replicate's once round 0 is finished.
        self._has_rewind_point = False

    def begin(self, round, branch):
        """Brings the lab to where a training starts from."""
        self._go_to_start(round, branch)
        self._lab.start_mask_updates(round)

    def _go_to_start(self, round, branch):
        if round:
            masks = self._directory.load_masks(self._replicate, round)
            self._assemble(round, plans.sources(self._config), "fresh")
            if branch != "ticket":
                masks = self._controlled(round, branch, masks)
            self.set_masks(round, masks)
        else:
            self._lab.make_dense()
            self.draw_initial()
            self._has_rewind_point = True
        self._place_data(round, branch)

    def resume(self, round, branch):
        """Brings the lab to the last checkpoint of a training."""
        self._directory.restore((self._replicate, branch, round), self._lab.state)
        self._has_rewind_point = True
        self._place_data(round, branch)

    def draw_initial(self, parts=None):
        """The initial weights, or the parts of that state, under the present masks."""
        seed = seed_for(self._config, "weights", self._replicate)
        self._lab.draw_weights(seed, parts=parts)

    def _assemble(self, round, sources, purpose, draw=1):
        """Each part of the state from its source, with every weight.

        Args:
            purpose, draw: for the seed of what is drawn fresh.
        """
        lab, parts = self._lab, {}
        for part in ("weights", "slots", "schedule", "state"):
            parts.setdefault(sources[part], []).append(part)
        if "end" in parts:
            self._go_to_end(round - 1)
        elif "rewind" in parts and not self._has_rewind_point:
            self._go_to_rewind_point()
        lab.make_dense()
        if "init" in parts:
            self.draw_initial(parts["init"])
        if "fresh" in parts:
            seed = seed_for(self._config, purpose, self._replicate, round, draw)
            lab.draw_weights(seed, fresh=True, parts=parts["fresh"])
        if "rewind" in parts:
            wanted = {part: part in parts["rewind"] for part in sources}
            lab.rewind.restore(
                weights=wanted["weights"],
                optimizer=wanted["slots"],
                schedule=wanted["schedule"],
                state=wanted["state"],
            )

    def _controlled(self, round, branch, masks):
        """Brings the lab from the ticket's start to a control's; returns its masks."""
        config, lab = self._config, self._lab
        control, draw = plans.control(config, branch)
        ticket = start = lab.kernels()
        if control.rewind:
            self._assemble(round, plans.sources(config, branch), "reinit", draw)
            start = lab.kernels()
        seed = seed_for(config, "control", self._replicate, round, draw)
        new, weights = control(masks, ticket, start, np.random.default_rng(seed))
        lab.set_kernels(weights)
        emptied = [
            kernel.path
            for kernel, old, mask in zip(lab.pruned.kernels, masks, new, strict=True)
            if old.any() and not mask.any()
        ]
        if emptied:
            warnings.warn(
                f"the control {branch} of round {round} has no weight of "
                f"{', '.join(emptied)}: nothing passes through",
                stacklevel=2,
            )
        return new

    def set_masks(self, round, masks):
        """Puts a round's masks on the model, or says which of them does not fit."""
        try:
            self._lab.pruned.set_masks(masks)
        except ValueError as error:
            raise InputError(
                f"the ticket of replicate {self._replicate}, round {round} in "
                f"{self._directory.path} does not fit: {error}. Restore it, or start "
                "again in another --workdir"
            ) from error

    def _place_data(self, round, branch):
        """The order of the data, and the place in it that a training starts at."""
        config = self._config
        anew = round and plans.sources(config, branch)["data"] == "fresh"
        purpose = "data_order", self._replicate, round if anew else 0
        self._lab.loop.seed.assign(seed_for(config, *purpose))
        place = plans.data_place(config, round, branch)
        self._lab.data_offset = place - plans.first_step(config, round, branch)

    def _go_to_rewind_point(self):
        """From initial weights to the point that a finished round 0 has passed."""
        self.begin(0, "ticket")
        self._lab.train(0, self._config.rewind_step)
        self._lab.rewind.update()

    def _go_to_end(self, round):
        """To where a round's ticket has ended: its last checkpoint, or what is left."""
        position = self._directory.position((self._replicate, "ticket", round))
        if position:
            step = position["step"]
            self.resume(round, "ticket")
        else:
            step = plans.first_step(self._config, round)
            self.begin(round, "ticket")
        last = plans.last_step(self._config, round)
        if step < last:
            self._display.say(
                f"replicate {self._replicate} round {round} ticket is trained again "
                f"from step {step:,}, as its last checkpoint is not there any more"
            )
        rewind_step = self._config.rewind_step
        if not round and step <= rewind_step:
            self._lab.train(step, rewind_step)
            self._lab.rewind.update()
            step = rewind_step
        self._lab.train(step, last)


def seed_for(config, purpose, replicate, round=0, draw=1):
    """An independent seed for each purpose, from `config.seed`."""
    entropy = [config.seed, _SEED_PURPOSES.index(purpose), replicate, round]
    # The first draw has the seed that it had when it was the only one.
    entropy += [draw] if draw > 1 else []
    return int(np.random.SeedSequence(entropy).generate_state(1)[0])
