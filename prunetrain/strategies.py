"""Where a training runs: on one device, on several, on several machines.

A strategy is a function `() -> tf.distribute.Strategy`, or None for one device. It is
called once in a process, before TensorFlow has looked for its devices. To add one,
write it here and register it.
"""

import contextlib
import functools
import json
import os
import signal
import threading

from prunetrain.errors import InputError, RunError
from prunetrain.lazy import tf
from prunetrain.registry import Registry

STRATEGIES = Registry("strategy")
MULTIWORKER = "multiworker"


@STRATEGIES.register("none")
def none():
    """On one device."""
    return None


@STRATEGIES.register("mirrored")
def mirrored(num_devices=None):
    """On all GPUs of this machine, or on its CPU."""
    if tf.config.list_physical_devices("GPU"):
        return tf.distribute.MirroredStrategy(_gpus(num_devices))
    # Plain sums: on one machine's processors, collective operations only cost time.
    return tf.distribute.MirroredStrategy(
        _cpus(num_devices or 1), tf.distribute.ReductionToOneDevice()
    )


@STRATEGIES.register_form("mirrored:N", r"mirrored:([1-9]\d{0,3})")
def mirrored_over(num_devices):
    """On N of its GPUs, or its CPU made to look like N devices, to try it."""
    return functools.partial(mirrored, num_devices)


def _gpus(count):
    names = [device.name for device in tf.config.list_logical_devices("GPU")]
    if (count or 1) > len(names):
        raise InputError(
            f"--strategy=mirrored:{count} needs as many GPUs; TensorFlow finds "
            f"{len(names)}. Take mirrored, which takes all there are"
        )
    return names[:count]


def _cpus(count):
    """Names of logical CPUs, of which there may be any number."""
    with contextlib.suppress(RuntimeError):
        tf.config.set_logical_device_configuration(
            tf.config.list_physical_devices("CPU")[0],
            [tf.config.LogicalDeviceConfiguration()] * count,
        )
    names = [device.name for device in tf.config.list_logical_devices("CPU")]
    if len(names) < count:
        raise InputError(
            f"--strategy=mirrored:{count} must be the first that a process does with "
            f"TensorFlow, which has started with {len(names)} CPU here. Start Python "
            "anew, or call tf.config.set_logical_device_configuration first"
        )
    return names[:count]


@STRATEGIES.register(MULTIWORKER)
def multiworker():
    """On the devices of all machines that TF_CONFIG names, one process each."""
    cluster()
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    # Here they wait for each other.
    strategy.reduce(tf.distribute.ReduceOp.SUM, tf.ones([]), axis=None)
    # TensorFlow has put a handler of its own in its place, which only takes a note.
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))
    return strategy


@STRATEGIES.register("tpu")
def tpu():
    """On all cores of a TPU (never tried)."""
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver.connect()
        return tf.distribute.TPUStrategy(resolver)
    except (ValueError, RuntimeError, tf.errors.OpError) as error:
        raise InputError(
            "--strategy=tpu needs a TPU, and TensorFlow finds none here "
            f"({str(error).splitlines()[0]}). Take mirrored or none"
        ) from error


@functools.cache
def make(name):
    """The strategy of that name, the same one at each call; None for one device.

    Raises:
        InputError: there are no such devices, or TensorFlow has started without them.
    """
    try:
        return STRATEGIES[name]()
    except RuntimeError as error:
        raise InputError(
            f"--strategy={name} must be the first that a process does with TensorFlow "
            f"({str(error).splitlines()[0]}). Start Python anew"
        ) from error


def cluster():
    """Addresses of the workers, and the number of this one, as TF_CONFIG has them.

    Raises:
        InputError: it is not there, or is no such description.
    """
    text = os.environ.get("TF_CONFIG", "")
    try:
        config = json.loads(text)
        workers, task = config["cluster"]["worker"], config["task"]
        index = int(task["index"])
        if task["type"] != "worker" or list(config["cluster"]) != ["worker"]:
            raise ValueError("only tasks of the type worker are known")
        if not 0 <= index < len(workers):
            raise ValueError(f"there is no worker {index}")
        return list(workers), index
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        problem = f"{type(error).__name__}: {error}" if text else "it is not set"
        raise InputError(
            "--strategy=multiworker needs TF_CONFIG in the environment of each worker, "
            'as {"cluster": {"worker": ["host1:2222", "host2:2222"]}, "task": '
            f'{{"type": "worker", "index": 0}}}} ({problem}). Received: '
            f"TF_CONFIG={text!r}. To try it on one machine: scripts/launch_local"
        ) from error


def follows(name):
    """Whether this process is a worker that leaves the files to another one."""
    return name == MULTIWORKER and cluster()[1] > 0


@contextlib.contextmanager
def told(name):
    """What comes of the loss of a worker, as the end of the run.

    Raises:
        RunError: with the remedy.
    """
    if name != MULTIWORKER:
        yield
        return
    try:
        yield
    except Exception as error:
        # TensorFlow is not loaded before it is needed.
        lost = "Unavailable", "Aborted", "DeadlineExceeded", "Cancelled", "Internal"
        if not isinstance(error, tuple(getattr(tf.errors, f"{x}Error") for x in lost)):
            raise
        raise RunError(
            "another worker of the cluster has ended or cannot be reached "
            f"({_reason(error)}). Start all workers anew with the same command: they "
            "go on from the last checkpoint"
        ) from error


def _reason(error):
    """The line of TensorFlow's report that says what happened."""
    lines = [line.strip() for line in error.message.splitlines() if line.strip()]
    told = [line for line in lines if line.startswith("Collective ops is aborted by")]
    return (told or lines or [type(error).__name__])[0]
