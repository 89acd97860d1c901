# Cases whose programs connect through rdma_cm. Sourced by the scripts that need it, after cases.sh.

# The output of a failed program.
errors='rror|fail|mismatch|verif|rsend|rrecv|rconnect'

# Waits until a program listens on a port of rdma_cm: the kernel lists its ids, Verbena's services are names of Unix
# sockets.
cm_listening() {
    if [[ $1 = verbena ]]; then
        await_on "$1" "grep -Eq '@verbena/.*/service/[0-9]+/[0-9a-f]{12}$(printf %04x "$2")/' /proc/net/unix"
    else
        await_on "$1" "rdma resource show cm_id 2>/dev/null | grep LISTEN | grep -Eq '[]0-9a-f:.]:$2 '"
    fi
}

# cm_attempt PORT PATTERN SERVER-COMMAND CLIENT-COMMAND: programs of rdma_cm, whose sides differ. %a becomes the
# server's address, %p the port (PORT: the fixed port of some programs). Neither log may have PATTERN.
cm_attempt() {
    local port=$1 address=${ADDRESS[$server]} log
    [[ $ip = IPv6 ]] && address=${ADDRESS6[$server]}
    PORT=$((PORT + 1)) PROBLEM=
    [[ $port = - ]] && port=$PORT
    : >"$RUN/client.log"
    set -- "$port" "$2" "${3//%a/$address}" "${4//%a/$address}"
    both cm_listening "$port" "${3//%p/$port}" "${4//%p/$port}"
    for log in server client; do
        if grep -Eq "$2" "$RUN/$log.log"; then PROBLEM=${PROBLEM:-$log: prints "$(grep -Em 1 "$2" "$RUN/$log.log")"}; fi
    done
}
