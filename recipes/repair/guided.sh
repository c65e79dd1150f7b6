#!/usr/bin/env bash
# Agent-RLVR on the repair world over training seeds: attempts, second attempts with hints and without, SFT, DPO on either, and the
# online form beside its control, each evaluated on the same 150 test problems. Ends with the comparisons over seeds.
#
#   bash recipes/repair/guided.sh [OUT]        SEEDS="0 1 2" by default; hours on one core
#
# Killed, the same command goes on: what is there is not made again. A seed stands for first and second attempts, for the
# order and choice of pairs and for rollouts; the base policy is one.
set -euo pipefail
out=${1:-runs/guided}
seeds=${SEEDS:-0 1 2}
rlvr=${SAGE_RLVR:-sage-rlvr}
base=$out/base
mkdir -p "$out"

once() {  # a command whose end is marked by a file, so that a second start passes it by
  local mark=$1
  shift
  [ -e "$mark" ] && return
  echo "+ $*"
  "$@" --quiet
  mkdir -p "$(dirname "$mark")" && touch "$mark"
}

samples() {  # of a policy on a split: samples NAME POLICY SPLIT PROBLEMS SEED, with what eval is given beside
  local store=$1 policy=$2 split=$3 problems=$4 seed=$5
  shift 5
  once "$out/done/${store//\//-}" "$rlvr" eval "$policy" --task repair --split "$split" --problems "$problems" --samples 32 \
    --sampling-seed "$seed" --store "$out/$store" "$@"
}

once "$out/done/base" "$rlvr" sft repair/guided_base --run "$out/base-run" --out "$base"
samples test-base "$base" test 150 0

for s in $seeds; do
  at=$out/s$s
  samples "s$s/attempts" "$base" train 300 "$s"
  for teacher in patch nothing; do
    samples "s$s/again-$teacher" "$base" train 300 "$s" --retry-failures-of "$at/attempts" --hints "$teacher"
  done
  once "$out/done/s$s-sft" "$rlvr" offline repair/guided_sft --run "$at/sft" --seed "$s" --model "$base" --pairs.attempts "$at/attempts"
  samples "s$s/test-sft" "$at/sft/policy" test 150 0
  for teacher in patch nothing; do
    once "$out/done/s$s-dpo-$teacher" "$rlvr" offline repair/guided_dpo --run "$at/dpo-$teacher" --seed "$s" \
      --model "$at/sft/policy" --pairs.attempts "$at/attempts" --pairs.retries "$at/again-$teacher"
    samples "s$s/test-dpo-$teacher" "$at/dpo-$teacher/policy" test 150 0
  done
  once "$out/done/s$s-online" "$rlvr" train repair/guided_online --run "$at/online" --seed "$s" --model "$base"
  once "$out/done/s$s-online-control" "$rlvr" train repair/guided_online --run "$at/online-control" --seed "$s" --model "$base" \
    --method.rollout_plan.guided false --teacher null
  samples "s$s/test-online" "$at/online/policy" test 150 0
  samples "s$s/test-online-control" "$at/online-control/policy" test 150 0
done

all() {  # the stores of one arm, a seed each, as `compare` takes them
  local given=""
  for s in $seeds; do given+="${given:+,}$out/s$s/test-$1"; done
  echo "$given"
}

"$rlvr" compare base="$out/test-base" sft="$(all sft)" guided="$(all dpo-patch)" unguided="$(all dpo-nothing)" \
  online="$(all online)" online_control="$(all online-control)" --k 16
"$rlvr" compare sft="$(all sft)" guided="$(all dpo-patch)" unguided="$(all dpo-nothing)" --k 16
"$rlvr" compare online_control="$(all online-control)" online="$(all online)" --k 16
