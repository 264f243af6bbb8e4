#!/bin/sh
# Slurm's Prolog: no job starts on a node that is not fit. docs/preflight.md has the lines of slurm.conf.
#
# It ends with 1 only where `paceline preflight` says in words that the node is not fit: Slurm then drains the node and puts
# the job back. Where nothing can be said (the driver does not answer, paceline is missing or broken, it took too long) the
# job starts and the log says why, unless ON_UNKNOWN=drain. It calls none of Slurm's commands, as Slurm asks of a prolog.

PATH=/usr/sbin:/usr/bin:/sbin:/bin
export PATH

# What a site sets, as NAME=VALUE lines; read by root's shell, so writable by root alone.
SETTINGS=/etc/paceline/preflight.conf

PACELINE=/opt/paceline/bin/paceline
# Checks that read and disturb nothing; a second or two. `gemm` would take half a minute of every job's start.
CHECKS=gpu,pcie_width,nic_pcie_width,row_remap,ecc
REQUIRE=gpu
# How many GPUs the node must have; empty does not count them.
GPUS=
ON_UNKNOWN=pass
TIMEOUT_S=60

if [ -r "$SETTINGS" ]; then
    . "$SETTINGS"
fi

log() {
    # Slurm keeps what a prolog prints only in places; the system's log has it in any case.
    logger -t paceline-preflight "$1" 2>/dev/null
    echo "paceline-preflight: $1" >&2
}

told=$(timeout -k 5 "$TIMEOUT_S" "$PACELINE" preflight --json \
    --only "$CHECKS" --require "$REQUIRE" ${GPUS:+--gpus "$GPUS"} 2>&1 </dev/null)
status=$?
last=$(printf '%s\n' "$told" | tail -n 1)

# A program that breaks ends with 1 as well, so the words count and not the status alone.
case "$status $last" in
    '0 {"record":"preflight",'*'"fit":true'*)
        exit 0
        ;;
    '1 {"record":"preflight",'*'"fit":false'*)
        log "job ${SLURM_JOB_ID:-?}: $last"
        exit 1
        ;;
    124\ * | 137\ *)
        log "job ${SLURM_JOB_ID:-?}: no answer within $TIMEOUT_S s"
        ;;
    *)
        log "job ${SLURM_JOB_ID:-?}: status $status: $last"
        ;;
esac
if [ "$ON_UNKNOWN" = drain ]; then
    exit 1
fi
exit 0
