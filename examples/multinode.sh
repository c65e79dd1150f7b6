#!/usr/bin/env bash
# A TRL script, with its own arguments, on several machines. On each of them, with the same paths and environment:
#
#   HEAD=10.0.0.1 MACHINES=2 MACHINE=0 GPUS=8 bash examples/multinode.sh examples/trl_lora.py      (10.0.0.1 itself)
#   HEAD=10.0.0.1 MACHINES=2 MACHINE=1 GPUS=8 bash examples/multinode.sh examples/trl_lora.py      (the other one)
#
# HEAD: an address of machine 0 that all others reach, on port PORT. GPUS: processes a machine. CONFIG: how the model is kept,
# a file of accelerate: multinode.yaml (a copy a GPU, the default), fsdp2.yaml, zero2.yaml or zero3.yaml beside this script. SageTrainer
# stops where accelerate sees fewer processes than were launched. Rewards, advantages, rows' noise and batch statistics are taken
# over all processes: nothing else has to be set.
#
# Run as two machines of one CPU process each on one computer (ACCELERATE_USE_CPU=true), with multinode.yaml; not on several
# computers, nor on GPUs.
set -euo pipefail

: "${HEAD:?the address of machine 0}" "${MACHINES:?how many machines}" "${MACHINE:?number of this machine, from 0}"
: "${GPUS:?processes on each machine}"
[ $# -ge 1 ] || { echo "usage: HEAD=... MACHINES=... MACHINE=... GPUS=... $0 SCRIPT [ARGUMENTS]" >&2; exit 2; }

config=${CONFIG:-$(dirname "$0")/multinode.yaml}
if grep -Eq "^distributed_type: *[\"']?NO\b" "$config"; then  # accelerate would start one process that knows of no other
  echo "$config: distributed_type is NO; give one of the files beside this script, or MULTI_GPU" >&2
  exit 2
fi

exec "${PYTHON:-python}" -m accelerate.commands.launch \
  --config_file "$config" \
  --num_machines "$MACHINES" --machine_rank "$MACHINE" --num_processes "$((MACHINES * GPUS))" \
  --main_process_ip "$HEAD" --main_process_port "${PORT:-29500}" \
  "$@"
