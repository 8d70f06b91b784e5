"""Every hyperparameter, once: name, default, help, unit and range.

The command line's flags are derived from `Config`; nothing below `lab.py` sees either.
"""

import dataclasses
import math
import re

from prunetrain import data, losses, options, rewinding
from prunetrain.data import DATASETS, SCALINGS
from prunetrain.data.augmentation import AUGMENTATIONS
from prunetrain.models import MODELS, SUFFIX
from prunetrain.optimizers import OPTIMIZERS, SCHEDULES
from prunetrain.options import ConfigError
from prunetrain.pruning import controls
from prunetrain.pruning.allocation import ALLOCATIONS
from prunetrain.pruning.criteria import CRITERIA
from prunetrain.pruning.dynamic import MASK_UPDATES
from prunetrain.pruning.patterns import PATTERNS
from prunetrain.pruning.schedules import SCHEDULES as SCHEDULES_OF_SPARSITY
from prunetrain.registry import parse_arguments
from prunetrain.strategies import MULTIWORKER, STRATEGIES

COMPILE_MODES = {
    "auto": "hybrid for max pooling and, on a CPU, for convolutions, else xla",
    "xla": "the whole loop",
    "hybrid": "only the update",
    "graph": "nothing",
}
SWITCH = {"off": "", "on": ""}
PRECISIONS = {
    "float32": "weights and arithmetic",
    "mixed_bfloat16": "arithmetic in bfloat16, weights in float32",
    "mixed_float16": "arithmetic in float16 with dynamic loss scaling, weights in "
    "float32",
    "bfloat16": "weights too: what moves one by less than 1/256 of it is lost, which "
    "with Adam is nearly all",
    "float64": "weights and arithmetic",
}
STREAMING = {
    "auto": "if its inputs take more than a quarter of the device's memory as float32",
    "always": "",
    "never": "",
}
PRUNE_AT = {
    "end": "the weights at the end of the round before",
    "init": "the initial weights, under the masks of the round before; round 0 is only "
    "evaluated",
    "during": "those of the round's own training, little by little, as "
    "--sparsity_schedule says; round 0 is only evaluated. Needs --sparsities",
}
ACCURACIES = {
    "overall": "one number",
    "by_class": "also of each class, or label if several: in metrics.jsonl, and for "
    "the test examples in results.csv",
}


@dataclasses.dataclass(frozen=True)
class Config:
    """The settings of an experiment, checked where they are made.

    Raises:
        ConfigError: a field is of another type or out of range, or two do not go
            together.
    """

    workdir: str = options.option(
        "Run",
        "",
        "folder for everything the run writes; a run goes on where it stopped when the "
        "command is repeated on its folder. Empty: a new one, runs/<date>-<time>",
        unit="folder",
        binding=False,
    )
    seed: int = options.option(
        "Run", 0, "what all randomness follows from", low=0, below=2**32
    )
    replicates: int = options.option(
        "Run",
        1,
        "independent repetitions, each from its own initial weights",
        low=1,
        below=10_001,
    )
    parallel_replicates: int = options.option(
        "Run",
        1,
        "replicates trained side by side, each in a process with its share of the "
        "cores; the results are the same where XLA compiles the whole loop. 1: one "
        "after the other, in this process",
        unit="processes",
        low=1,
        binding=False,
    )
    only: str = options.option(
        "Run",
        "",
        "what this process trains of the run: replicates, and of these one branch if "
        "it is named, as 0-4, 2, 2:ticket or 2:reinit. It writes to parts/ in the work "
        "directory, while others may train other parts; `prunetrain merge` joins them. "
        "Empty: everything",
        unit="replicates, or replicates:branch",
        binding=False,
    )
    checkpoint_every: str = options.option(
        "Run",
        "60s",
        "how often a training is saved, to go on from there after an interruption: "
        "every so many seconds (60s) or steps (500). It changes no result",
        unit="seconds with an s, or steps",
        binding=False,
    )
    tensorboard: str = options.option(
        "Run",
        "off",
        "events for TensorBoard in the folder's tensorboard/: losses and accuracies, "
        "masks as images, surviving weights as histograms. --tensorboard alone is on",
        choices=SWITCH,
        binding=False,
    )
    compile: str = options.option(
        "Run", "auto", "what XLA compiles", choices=COMPILE_MODES
    )
    strategy: str = options.option(
        "Run",
        "none",
        "where each step is made; several devices take equal parts of its batch. "
        "multiworker: each machine runs the same command on the same --workdir",
        choices=STRATEGIES,
    )
    steps_per_loop: int = options.option(
        "Run",
        1000,
        "most steps in one dispatch to the device",
        unit="steps",
        low=1,
        binding=False,
    )
    dataset: str = options.option(
        "Data",
        "mnist",
        "what to train on; also FILE.npz with x_train, y_train, x_test and y_test, "
        "tfds:NAME (TensorFlow Datasets), or package.module:function, which is "
        "imported and run",
        choices=DATASETS,
        importable=True,
        suffix=data.SUFFIX,
        prefix=data.PREFIX,
    )
    data_dir: str = options.option(
        "Data",
        "",
        "folder with the dataset's files. Empty: the embedded ones",
        unit="folder",
    )
    dataset_args: str = options.option(
        "Data",
        "",
        "keyword arguments for the function that makes the dataset",
        unit="name=value,…",
    )
    task: str = options.option(
        "Data", "classes", "what the labels are", choices=data.TASKS
    )
    scaling: str = options.option(
        "Data", "unit", "scaling of the inputs", choices=SCALINGS
    )
    validation_size: int = options.option(
        "Data",
        5000,
        "examples taken from the training set to choose the best step by",
        unit="examples",
        low=1,
    )
    augment: tuple[str, ...] = options.option(
        "Data",
        (),
        "random changes of the training images, anew at every step, in this order; "
        "also package.module:function (x, seed) -> x",
        choices=AUGMENTATIONS,
        importable=True,
    )
    stream: str = options.option(
        "Data",
        "auto",
        "whether the data stays on the host, to be handed to the device while it "
        "works; it changes no result",
        choices=STREAMING,
        binding=False,
    )
    model: str = options.option(
        "Model",
        "lenet_300_100",
        "the network, by name or as package.module:function, which is imported and "
        "called: it runs that code, for example keras.applications:MobileNetV2 with "
        "--model_args=weights=None. Its outputs are logits or probabilities, one for "
        "each class or label (one only if binary), or numbers. Or a trained one, "
        "file.keras: round 0 only evaluates it, and by default every round starts from "
        "its weights",
        choices=MODELS,
        importable=True,
        suffix=SUFFIX,
    )
    model_args: str = options.option(
        "Model",
        "",
        "arguments for the model's function, name=value,… Shape and number of classes "
        "are filled in from the data where it takes input_shape and num_classes (or "
        "classes)",
        unit="name=value,…",
    )
    precision: str = options.option(
        "Model", "float32", "Keras's dtype policy", choices=PRECISIONS
    )
    loss: str = options.option(
        "Training",
        "auto",
        "what is minimised; whether the model gives logits or probabilities is found "
        "from it. Also package.module:function (labels, outputs) -> loss",
        choices=losses.choices(),
        importable=True,
    )
    loss_args: str = options.option(
        "Training",
        "",
        "what the loss takes, for example label_smoothing=0.1; from_logits=True says "
        "what the outputs are",
        unit="name=value,…",
    )
    optimizer: str = options.option(
        "Training",
        "adam",
        "a Keras optimizer, or package.module:Class",
        choices=dict.fromkeys(OPTIMIZERS, ""),
        importable=True,
    )
    optimizer_args: str = options.option(
        "Training",
        "",
        "what else the optimizer takes, for example momentum=0.9,nesterov=True, "
        "weight_decay=1e-4, global_clipnorm=1.0 or gradient_accumulation_steps=4",
        unit="name=value,…",
    )
    learning_rate: float = options.option(
        "Training", 1.2e-3, "where the schedule starts", above=0, below=math.inf
    )
    learning_rate_schedule: str = options.option(
        "Training",
        "constant",
        "the learning rate over the steps",
        choices=SCHEDULES,
        importable=True,
    )
    learning_rate_schedule_args: str = options.option(
        "Training",
        "",
        "what the schedule takes, for example boundaries=(20000,25000)",
        unit="name=value,…",
    )
    warmup_steps: int = options.option(
        "Training",
        0,
        "first steps, over which the learning rate rises in a straight line",
        unit="steps",
        low=0,
    )
    batch_size: int = options.option(
        "Training", 60, "examples in a step", unit="examples", low=1
    )
    train_steps: int = options.option(
        "Training", 50_000, "length of the training in each round", unit="steps", low=1
    )
    eval_every: int = options.option(
        "Training",
        100,
        "steps between two evaluations on the validation examples",
        unit="steps",
        low=1,
    )
    test_every: int = options.option(
        "Training",
        0,
        "steps between two evaluations on the test examples in a training, a multiple "
        "of eval_every. They choose nothing. 0: only at its best and last step",
        unit="steps",
        low=0,
    )
    accuracy: str = options.option(
        "Training", "overall", "what is said of the accuracy", choices=ACCURACIES
    )
    rounds: int = options.option(
        "Pruning",
        15,
        "rounds of pruning, after round 0, which trains dense. More may be added to a "
        "finished run",
        low=0,
        below=10_001,
        binding=False,
    )
    prune_rate: float = options.option(
        "Pruning",
        0.2,
        "what is removed in each round, for example 0.2 for 20 %",
        unit="fraction of the weights that remain",
        low=0,
        below=1,
    )
    sparsities: tuple[float, ...] = options.option(
        "Pruning",
        (),
        "how sparse each round is, in place of --rounds and --prune_rate: 0.5,0.8,0.95 "
        "are three rounds, 0.95 is one shot. The same in each layer if layerwise",
        unit="fraction of all prunable weights",
        low=0,
        below=1,
    )
    prune_at: str = options.option(
        "Pruning", "end", "which weights are scored", choices=PRUNE_AT
    )
    sparsity_schedule: str = options.option(
        "Pruning",
        "cubic",
        "how sparsity rises in a training with --prune_at=during, from "
        "--update_begin to --update_end",
        choices=SCHEDULES_OF_SPARSITY,
        importable=True,
    )
    mask_updates: str = options.option(
        "Pruning",
        "static",
        "how masks change in a training while the sparsity stays",
        choices={k: v for k, v in MASK_UPDATES.items() if k != "gradual"},
        importable=True,
    )
    drop_fraction: float = options.option(
        "Pruning",
        0.3,
        "what moves at the first of --mask_updates (set, rigl), falling to nothing as "
        "half a cosine does",
        unit="fraction of the weights that remain",
        low=0,
        below=1,
    )
    update_every: int = options.option(
        "Pruning",
        100,
        "steps from one change of the masks in a training to the next",
        unit="steps",
        low=1,
    )
    update_begin: int = options.option(
        "Pruning", 0, "step of the first of them", unit="step", low=0
    )
    update_end: int = options.option(
        "Pruning",
        0,
        "step that ends them. 0: three quarters of the training",
        unit="step",
        low=0,
    )
    layer_rates: tuple[str, ...] = options.option(
        "Pruning",
        (),
        "rates that differ from --prune_rate, as PATTERN=RATE,…; PATTERN is a regular "
        "expression on variable paths, the first match counts. Only for layerwise "
        "allocation. Empty: the last kernel (the output layer) at half the rate, as in "
        "the paper; .*=RATE: all the same, as global allocation has it",
    )
    criterion: str = options.option(
        "Pruning", "magnitude", "which weights go first", choices=CRITERIA
    )
    criterion_batches: int = options.option(
        "Pruning",
        10,
        "how many batches of training examples are looked at, by the criteria that "
        "look at examples; the first ones of the training, without augmentation",
        unit="batches",
        low=1,
        below=1001,
    )
    allocation: str = options.option(
        "Pruning", "layerwise", "how many each layer loses", choices=ALLOCATIONS
    )
    pattern: str = options.option(
        "Pruning",
        "element",
        "what is removed together; --prune_rate counts such units",
        choices=PATTERNS,
    )
    prune_iterations: int = options.option(
        "Pruning",
        0,
        "steps in which a round's pruning is done, with scores taken anew in each. 0: "
        "as the criterion has it, 100 for synflow, 1 for the others",
        unit="steps",
        low=0,
        below=10_001,
    )
    min_kept: int = options.option(
        "Pruning",
        0,
        "weights of each layer that are never pruned, its highest-scored ones. Other "
        "layers make up for it, or the run ends (layerwise) where it cannot be held",
        unit="weights",
        low=0,
    )
    prune_include: tuple[str, ...] = options.option(
        "Pruning",
        (),
        "regular expressions on variable paths: only what matches one is pruned. "
        "Embeddings and other matrices that are not named kernel come in this way. "
        "Empty: all kernels",
    )
    prune_exclude: tuple[str, ...] = options.option(
        "Pruning",
        (),
        "likewise: what matches one is not pruned, for example output",
    )
    rewind: tuple[str, ...] = options.option(
        "Pruning",
        ("late",),
        "what a round starts from: a preset, and parts that differ from it, as "
        "late,slots=init. Parts are weights, slots (of the optimizer), schedule (its "
        "count of steps, which the learning rate follows), state (batch norm, dropout) "
        "and data (the place in its order); each is as at init (step 0 of round 0), "
        "rewind (--rewind_step of round 0), end (of the last round) or fresh (drawn "
        "anew)",
        unit="PRESET,part=source,…",
        choices=rewinding.PRESETS,
        checked=False,
    )
    rewind_step: int = options.option(
        "Pruning",
        0,
        "step of round 0 that --rewind takes as rewind, and from which the steps of "
        "later rounds are counted, unless the schedule begins anew",
        unit="step",
        low=0,
    )
    controls: tuple[str, ...] = options.option(
        "Pruning",
        (),
        "trained besides the ticket of every round from 1, to compare it with; "
        "NAME:DRAWS is several draws. May be added to a finished run",
        unit="NAME or NAME:DRAWS,…",
        choices=controls.CONTROLS,
        checked=False,
        binding=False,
    )
    control_rounds: tuple[int, ...] = options.option(
        "Pruning",
        (),
        "rounds that have controls. Empty: every one",
        unit="round",
        low=1,
        binding=False,
    )

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value = options.converted(field, getattr(self, field.name))
            object.__setattr__(self, field.name, value)
        self._check_sparsities()
        self._check_pairs()
        self._check_updates()
        self._check_rewind()
        self._check_controls()
        self._check_only()

    def _check_pairs(self):
        if self.test_every % self.eval_every:
            raise ConfigError(
                "test_every",
                self.test_every,
                f"must be 0 or a multiple of eval_every={self.eval_every}",
            )
        if self.rewind_step >= self.train_steps:
            raise ConfigError(
                "rewind_step",
                self.rewind_step,
                f"must be less than train_steps={self.train_steps}",
            )
        if self.rewind_step and self.starts_trained:
            raise ConfigError(
                "rewind_step",
                self.rewind_step,
                f"must be 0 for --model={self.model}, which round 0 does not train; "
                "a function that loads the file is trained",
            )
        if self.precision != "float32" and self.starts_trained:
            raise ConfigError(
                "precision",
                self.precision,
                f"must be float32 for --model={self.model}: its layers have their own",
            )
        if self.strategy != "none" and self.parallel_replicates > 1:
            raise ConfigError(
                "parallel_replicates",
                self.parallel_replicates,
                f"must be 1 with strategy={self.strategy}, which takes the devices",
            )
        if self.strategy == MULTIWORKER and not self.workdir:
            raise ConfigError(
                "workdir",
                self.workdir,
                "must be a folder that all workers see, with strategy=multiworker",
            )
        if self.loss in losses.choices().keys() - {"auto", *losses.LOSSES[self.task]}:
            raise ConfigError(
                "loss",
                self.loss,
                f"must be one of {', '.join(losses.LOSSES[self.task])} for "
                f"task={self.task}",
            )
        if self.layer_rates and self.allocation != "layerwise":
            raise ConfigError(
                "layer_rates",
                ",".join(self.layer_rates),
                "needs allocation=layerwise; leave it out or change the allocation "
                f"(now {self.allocation})",
            )
        self.rates_by_pattern()
        self.checkpoint_interval()
        for field in dataclasses.fields(self):
            if field.name.endswith("_args"):
                self.arguments(field.name)
        for name in ("prune_include", "prune_exclude"):
            self._check_patterns(name)

    def _check_sparsities(self):
        """They say how many rounds there are."""
        found, default = self.sparsities, type(self)
        if not found:
            return
        given = ",".join(map(str, found))
        if list(found) != sorted(found):
            raise ConfigError("sparsities", given, "must rise from round to round")
        if self.rounds not in (default.rounds, len(found)):
            raise ConfigError(
                "rounds",
                self.rounds,
                f"must be left out, or be the number of sparsities={given}: "
                f"{len(found)}",
            )
        object.__setattr__(self, "rounds", len(found))
        for name in ("prune_rate", "layer_rates"):
            value = getattr(self, name)
            if value != getattr(default, name):
                raise ConfigError(
                    name,
                    ",".join(value) if isinstance(value, tuple) else value,
                    f"must be left out with sparsities={given}, which stand in place "
                    "of rates",
                )

    def _check_rewind(self):
        given = ",".join(self.rewind)
        try:
            sources = rewinding.sources(self.rewind)
        except ValueError as error:
            raise ConfigError("rewind", given, str(error)) from error
        needs = "rewind" in sources.values() or not rewinding.starts_anew(sources)
        if self.rewind_step and not needs:
            raise ConfigError(
                "rewind_step",
                self.rewind_step,
                f"must be 0 with rewind={given}, which takes nothing from that step",
            )
        if self.rewind_step and self.prune_at != "end":
            raise ConfigError(
                "rewind_step",
                self.rewind_step,
                f"must be 0 with prune_at={self.prune_at}: nothing is trained before",
            )
        if "end" in sources.values() and self.prune_at != "end":
            raise ConfigError(
                "rewind",
                given,
                f"must take nothing from the end of a round with prune_at="
                f"{self.prune_at}, whose rounds start from the initial weights: late, "
                "lottery or reinit",
            )

    def _check_updates(self):
        begin, end = self.update_steps()
        changes = self.prune_at == "during" or self.mask_updates != "static"
        if changes and not begin < end < self.train_steps:
            raise ConfigError(
                "update_end",
                self.update_end,
                f"must be after update_begin={begin} and before train_steps="
                f"{self.train_steps}",
            )
        if self.mask_updates != "static":
            self._check_single_weights_move()
        if self.prune_at != "during":
            return
        needed = {
            "criterion": ("magnitude",),
            "allocation": ("layerwise", "global"),
            "pattern": ("element",),
            "mask_updates": ("static",),
            "prune_iterations": (0,),
            "min_kept": (0,),
        }
        for name, values in needed.items():
            if getattr(self, name) not in values:
                raise ConfigError(
                    name,
                    getattr(self, name),
                    f"must be {' or '.join(map(str, values))} with prune_at=during",
                )
        if not self.sparsities:
            raise ConfigError(
                "prune_at",
                self.prune_at,
                "needs --sparsities, as 0.9: how sparse the training ends",
            )

    def _check_single_weights_move(self):
        """They leave no pattern; in one pool, no layer is sure of any."""
        together = f"mask_updates={self.mask_updates}"
        if self.pattern != "element":
            raise ConfigError(
                "pattern",
                self.pattern,
                f"must be element with {together}, which moves single weights",
            )
        pooled = (self.mask_updates, self.allocation) == ("straight_through", "global")
        if self.min_kept and pooled:
            raise ConfigError(
                "min_kept",
                self.min_kept,
                f"must be 0 with {together} and allocation=global, which moves weights "
                "between layers",
            )

    def update_steps(self):
        """The steps at which changes of the masks in a training begin and end."""
        return self.update_begin, self.update_end or self.train_steps * 3 // 4

    def _check_controls(self):
        given = ",".join(self.controls)
        try:
            branches = controls.draws(self.controls)
        except ValueError as error:
            raise ConfigError("controls", given, str(error)) from error
        # Such a ticket has no masks of its own until it is trained.
        names = {name for name, _ in branches.values()} - {"reinit", "same_sign"}
        if names and self.prune_at == "during":
            raise ConfigError(
                "controls",
                given,
                "must be reinit or same_sign with prune_at=during, where masks are "
                "made in each training itself",
            )
        if any(number > self.rounds for number in self.control_rounds):
            raise ConfigError(
                "control_rounds",
                ",".join(map(str, self.control_rounds)),
                f"must be rounds from 1 to rounds={self.rounds}",
            )

    def _check_only(self):
        if not self.only:
            return
        replicates, branch = self.part()
        if not 0 <= replicates.start < replicates.stop <= self.replicates:
            raise ConfigError(
                "only",
                self.only,
                f"must be replicates below replicates={self.replicates}, as 0-4 or 2, "
                "and may name a branch of theirs, as 2:ticket",
            )
        branches = ["ticket", *controls.draws(self.controls)]
        if branch not in ("", *branches):
            raise ConfigError(
                "only",
                self.only,
                f"must name one of {', '.join(branches)} behind the :",
            )

    def part(self):
        """`only` as a range of replicates and a branch, "" for all of them."""
        if not self.only:
            return range(self.replicates), ""
        found = re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?(?::(\w+))?", self.only)
        first, last, branch = found.groups() if found else (-1, None, None)
        return range(int(first), int(last or first) + 1), branch or ""

    @property
    def starts_trained(self):
        """Whether the model comes from a file: round 0 evaluates it as it is."""
        return self.model.endswith(SUFFIX)

    def _check_patterns(self, name):
        for pattern in getattr(self, name):
            try:
                re.compile(pattern)
            except re.error as error:
                raise ConfigError(
                    name, pattern, f"must hold regular expressions ({error})"
                ) from error

    def checkpoint_interval(self):
        """`checkpoint_every` as `(steps, seconds)`, one of them infinite."""
        text = self.checkpoint_every
        if not re.fullmatch("0*[1-9][0-9]{0,8}s?", text):
            raise ConfigError(
                "checkpoint_every",
                text,
                "must be a whole number from 1, of seconds as in 60s or of steps as in "
                "500",
            )
        number = int(text.removesuffix("s"))
        return (math.inf, number) if text.endswith("s") else (number, math.inf)

    def rates_by_pattern(self):
        """`layer_rates` as a dict from pattern to rate."""
        rates = {}
        for item in self.layer_rates:
            pattern, _, text = item.rpartition("=")
            try:
                rate = float(text)
            except ValueError:
                rate = math.nan
            if not pattern or not 0 <= rate < 1:
                raise ConfigError(
                    "layer_rates",
                    item,
                    "must be PATTERN=RATE with a rate from 0 to below 1, for example "
                    "output=0.1",
                )
            if pattern in rates:
                raise ConfigError(
                    "layer_rates", pattern, "must name each pattern only once"
                )
            rates[pattern] = rate
        return rates

    def arguments(self, name):
        """A field such as `optimizer_args` as a dict of keyword arguments."""
        text = getattr(self, name)
        try:
            return parse_arguments(text)
        except ValueError as error:
            raise ConfigError(
                name, text, f"{error}, for example momentum=0.9,nesterov=True"
            ) from error

    def as_dict(self):
        """The fields as they are written to config.json: all but the work directory."""
        fields = dataclasses.asdict(self)
        del fields["workdir"]
        return {k: list(v) if isinstance(v, tuple) else v for k, v in fields.items()}


def free_settings():
    """Names of the settings that change nothing about a training and its results."""
    return {
        field.name
        for field in dataclasses.fields(Config)
        if not field.metadata["binding"]
    }
