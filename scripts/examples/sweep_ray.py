"""An experiment as Ray tasks, one for each replicate, on machines that share a folder.

    pip install ray
    python scripts/examples/sweep_ray.py /shared/runs/sweep --train_steps=2000

Each task is a process of its own (`--only`), so nothing of TensorFlow's state is
shared; one that fails is started again by Ray and goes on where it stopped.
"""

import subprocess
import sys

REPLICATES = 5


def train(replicate, workdir, flags):
    """Trains one replicate and its controls."""
    words = [f"--workdir={workdir}", f"--replicates={REPLICATES}", *flags]
    subprocess.run(
        [sys.executable, "-m", "prunetrain.main", *words, f"--only={replicate}"],
        check=True,
    )


def main(workdir, *flags):
    import ray

    ray.init()
    task = ray.remote(num_cpus=2, max_retries=3, retry_exceptions=True)(train)
    ray.get([task.remote(i, workdir, flags) for i in range(REPLICATES)])
    subprocess.run(
        [sys.executable, "-m", "prunetrain.main", "merge", workdir], check=True
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
