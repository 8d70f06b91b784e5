#!/usr/bin/env bash
# An experiment over the machines of a Slurm cluster that share the folder runs/: an array
# task for each replicate's tickets, then one for each replicate's controls.
#
#   scripts/examples/sweep_slurm.sh          (from the repository)
#
# A task that is preempted or killed can be queued again: it goes on where it stopped.
set -eu
workdir=runs/sweep
run="python -m prunetrain.main --flagfile=scripts/flagfiles/lth_mnist_paper.flags \
--workdir=$workdir"
array=(sbatch --parsable --array=0-4 --cpus-per-task=2 --requeue)

tickets=$("${array[@]}" --wrap "$run --only=\$SLURM_ARRAY_TASK_ID:ticket")
controls=$("${array[@]}" --dependency=aftercorr:"$tickets" \
  --wrap "$run --only=\$SLURM_ARRAY_TASK_ID")
sbatch --dependency=afterok:"$controls" \
  --wrap "prunetrain merge $workdir && prunetrain report $workdir"
