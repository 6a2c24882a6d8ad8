#!/usr/bin/env bash
# One run of refsim over two hosts: here two launches of torchrun on this machine, with the loopback for their network.
#
#   examples/two_hosts.sh 4 run CHECKPOINT_DIR --mesh t3k --parallel sp2_tp4 --inputs in.safetensors --out out.safetensors
#
# The first argument is the number of ranks a host has (half of the mesh's devices), the others are those of refsim.
# Every host needs the same Python environment, checkpoint and inputs; host 0 writes the result. On two machines run the
# line in launch() on each, with its own number, the address of host 0, and the network's interface for both:
#
#   GLOO_SOCKET_IFNAME=eth0 python -m refsim.torchrun --nnodes 2 --node-rank 1 --nproc-per-node 4 \
#       --master-addr 10.0.0.1 --master-port 29500 -m refsim run ...
#
# Whoever reaches the port takes part, so use a network you trust.
set -euo pipefail

if [ $# -lt 2 ]; then
    echo "usage: $0 RANKS_PER_HOST run CHECKPOINT_DIR --mesh ... --inputs ... --out ..." >&2
    exit 2
fi
ranks=$1
shift
port=${MASTER_PORT:-29500}
export GLOO_SOCKET_IFNAME=${GLOO_SOCKET_IFNAME:-lo}

launch() {
    local host=$1
    shift
    exec "${PYTHON:-python}" -m refsim.torchrun --nnodes 2 --node-rank "$host" --nproc-per-node "$ranks" \
        --master-addr 127.0.0.1 --master-port "$port" -m refsim "$@"
}

launch 1 "$@" &
other=$!
trap 'kill "$other" 2>/dev/null || true' EXIT
code=0
(launch 0 "$@") || code=$?
wait "$other" || code=$?
exit "$code"
