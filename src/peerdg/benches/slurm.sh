#!/bin/bash
# One task of a bench: continue the run of this array index. Slurm sends USR1 before the time limit.
eval "set -- $(sed -n "$((SLURM_ARRAY_TASK_ID + 1))p" "$PEERDG_RUNS")"
"$PEERDG_PYTHON" -P -m peerdg "$@" &
run=$!
stop() {
    kill -TERM "$run"
    wait "$run" # until it has saved its state
}
trap 'stop; exit' TERM # scancel
trap 'stop; scontrol requeue "${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}"' USR1
wait "$run"
