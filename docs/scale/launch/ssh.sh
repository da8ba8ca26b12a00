#!/usr/bin/env bash
# Machines that one reaches by ssh, and nothing else: start Ray on each, run the config on them, stop Ray.
#   GPUS=8 SPARE=0 bash ssh.sh mine.yaml 10.0.0.1 10.0.0.2 10.0.0.3 [-- KEY=VALUE ...]
# The first is the head; ssh must ask for no password. Each has this folder at the same path, with an environment in
# .venv that has vlmrl-perception[ray]. Of the machines, SPARE do not train. At the end every Ray of this user is stopped there.
set -euo pipefail
config=${1:?"the config, a path that all machines see"}
head=${2:?"the machines by address, the head first"}
shift
machines=()
while (($#)) && [[ $1 != -- ]]; do
    machines+=("$1")
    shift
done
if (($#)); then shift; fi
address=$head:${RAY_PORT:-6379}
tty=()

on() { # MACHINE COMMAND ...: run it there, in this folder and its environment
    local machine=$1 folder
    folder=$(printf %q "$PWD")
    shift
    # shellcheck disable=SC2029  # expanded here, quoted for there
    ssh "${tty[@]}" "$machine" "cd $folder && export PATH=$folder/.venv/bin:\$PATH RAY_AUTH_MODE=token \
RAY_AUTH_TOKEN_PATH=$folder/.ray-token && $(printf '%q ' "$@")"
}

stop() {
    tty=()
    for machine in "${machines[@]}"; do on "$machine" ray stop || true; done
}
trap stop EXIT

# Ray lets in whoever has the token of this run, which stays in a file that others cannot read.
token=$(od -An -N32 -tx1 /dev/urandom | tr -d " \n")
for machine in "${machines[@]}"; do
    printf %s "$token" | on "$machine" sh -c "rm -f .ray-token; umask 077; cat > .ray-token"
done
on "$head" ray start --head --node-ip-address "$head" --port "${address##*:}" --disable-usage-stats
for machine in "${machines[@]:1}"; do
    on "$machine" ray start --address "$address" --node-ip-address "$machine" --disable-usage-stats
done
if [[ -t 0 ]]; then tty=(-t); fi # Ctrl-C reaches the launcher, which saves
on "$head" vlmrl launch "$config" --nodes "$((${#machines[@]} - ${SPARE:-0}))" --gpus-per-node "${GPUS:-8}" \
    "cluster.address=$address" resume=auto "$@"
