"""Starts a crowd (crowd.cc), kills members at random and starts others in their place, stops others at random and
lets them continue, and checks the output of the members: crowd.py TOOL CROWD LOGS MEMBERS SECONDS.
VERBENA_CROWD_SEED repeats a choice of victims."""
import os
import random
import re
import signal
import subprocess
import sys
import time

tool, crowd, logs = sys.argv[1:4]
MEMBERS, SECONDS = int(sys.argv[4]), float(sys.argv[5])
CONNECTS_TO = (1, 5, 21)  # the same as in crowd.cc
KILLS_A_SECOND = 2.5
STOPS_A_KILL = 3
LONGEST_STOP = 1.5  # seconds; shorter than all retries of a connection
MAPS_OF_A_LINK = 4
TIMEOUT = 60  # seconds, for steps that normally take less than one
FIRST_PORT = 21000
steered = os.environ.get("VERBENA_STEERING", "on") != "off"
seed = int(os.environ.get("VERBENA_CROWD_SEED", random.randrange(10**6)))
choose = random.Random(seed)


def check(holds, what):
    if not holds:
        sys.exit(f"crowd: {what} (VERBENA_CROWD_SEED={seed})")


class Member:
    def __init__(self, index):
        self.index = index
        self.log = os.path.join(logs, f"member{index}.{len(all_members)}")
        self.process = subprocess.Popen(
            [tool, "run", "--", crowd, str(index), str(MEMBERS), str(FIRST_PORT)],
            stdin=subprocess.PIPE, stdout=open(self.log, "w"), stderr=subprocess.STDOUT)
        self.pid = self.process.pid
        all_members.append(self)

    def lines(self, word):
        """The other words of each line that begins with `word`."""
        with open(self.log, errors="replace") as lines:
            return [line.split()[1:] for line in lines if line.startswith(word + " ") and line.endswith("\n")]

    def connected_peers(self):
        """Index and pid of the peers whose last connection is not lost."""
        now = {}
        with open(self.log, errors="replace") as lines:
            for line in lines:
                words = line.split()
                if words[:1] == ["joined"]:
                    now[int(words[1])] = int(words[2])
                elif words[:1] == ["lost"]:
                    now.pop(int(words[1]), None)
        return now

    def send(self, word):
        self.process.stdin.write(word.encode() + b"\n")
        self.process.stdin.flush()

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def private_kib(self):
        """Without the pages of rings, which are shared with peers and released with them."""
        with open(f"/proc/{self.pid}/status") as status:
            return int(re.search(r"RssAnon:\s+(\d+)", status.read()).group(1))

    def shared_maps(self):
        """Mappings of rings and of the exposures of peers."""
        with open(f"/proc/{self.pid}/maps") as maps:
            return sum("/memfd:" in line and "verbena" in line for line in maps)


all_members, killed = [], set()
stopped = {}  # member: when it continues


def stop(member, seconds):
    member.process.send_signal(signal.SIGSTOP)
    stopped[member] = time.monotonic() + seconds


def pause(seconds):
    """Sleeps. Continues stopped members meanwhile when their time is over."""
    end = time.monotonic() + seconds
    while True:
        now = time.monotonic()
        for m in [m for m, until in stopped.items() if until <= now]:
            del stopped[m]
            m.process.send_signal(signal.SIGCONT)
        if now >= end:
            return
        time.sleep(max(0, min([end, *stopped.values()]) - now))


def await_all_connections(what):
    end = time.monotonic() + TIMEOUT
    while True:
        pids = [m.pid for m in members]
        missing = [(m.index, step) for m in members for step in CONNECTS_TO
                   if m.connected_peers().get((m.index + step) % MEMBERS) != pids[(m.index + step) % MEMBERS]]
        if not missing:
            return
        for m in members:
            check(m.process.poll() is None, f"{what}: member {m.index} ended by itself with {m.process.returncode}")
        check(time.monotonic() < end, f"{what}: {len(missing)} connections are missing, the first {missing[:5]}")
        time.sleep(0.2)


def counts():
    """Messages so far, by connecting and accepting process."""
    already = {m: len(m.lines("count")) for m in members}
    for m in members:
        m.send("report")
    end = time.monotonic() + TIMEOUT
    result = {}
    for m in members:
        while len(m.lines("count")) < already[m] + len(CONNECTS_TO):
            check(time.monotonic() < end, f"member {m.index} does not report")
            time.sleep(0.05)
        for index, pid, number in m.lines("count")[already[m]:]:
            result[m.pid, int(pid)] = int(number)
    return result


def counters():
    """Sums over all processes."""
    text = subprocess.run([tool, "counters"], capture_output=True, text=True, check=True).stdout
    sums = {}
    for name, value in re.findall(r"^ {4}(\w+) +(\d+)  ", text, re.M):
        sums[name] = sums.get(name, 0) + int(value)
    return sums


members = []
for i in range(MEMBERS):
    members.append(Member(i))
    time.sleep(0.04)
await_all_connections("at the start")
first = list(members)
before = {m: (m.descriptors(), m.private_kib(), m.shared_maps()) for m in first}

stops = 0
end = time.monotonic() + SECONDS
while time.monotonic() < end:
    victim = choose.randrange(MEMBERS)
    members[victim].process.kill()
    check(members[victim].process.wait() == -9, f"member {victim} had ended by itself")
    killed.add(members[victim].pid)
    for _ in range(STOPS_A_KILL):
        pause(choose.uniform(0, 2 / KILLS_A_SECOND / STOPS_A_KILL))
        stop(choose.choice(members), choose.uniform(0.01, LONGEST_STOP))
        stops += 1
    members[victim] = Member(victim)
pause(LONGEST_STOP)
await_all_connections("after the kills")

# From now on no process changes: all members receive messages, and soon steering delivers every packet.
def misrouted(sums):
    return sums.get("udp_misrouted_forwarded", 0) + sums.get("udp_misrouted_dropped", 0)


settled = time.monotonic()
while True:
    earlier, sums_earlier = counts(), counters()
    time.sleep(2)
    later, sums = counts(), counters()
    check(len(later) == MEMBERS * len(CONNECTS_TO), f"{len(later)} connections instead of {MEMBERS * len(CONNECTS_TO)}")
    stalled = [pair for pair in later if later[pair] <= earlier.get(pair, 0)]
    check(not stalled, f"{len(stalled)} connections transfer no messages")
    still_misrouted = misrouted(sums) - misrouted(sums_earlier)
    if not steered or still_misrouted == 0:
        break
    check(time.monotonic() < settled + TIMEOUT, f"{still_misrouted} packets in 2 s still reach the wrong process")

survivors = [m for m in first if m in members]
for m in survivors:
    fds, kib, maps = before[m]
    check(m.descriptors() <= fds + 4, f"member {m.index} had {fds} descriptors and has {m.descriptors()}")
    check(m.private_kib() <= kib + 2048, f"member {m.index} had {kib} KiB and has {m.private_kib()}")
    check(m.shared_maps() <= maps + MAPS_OF_A_LINK, f"member {m.index} had {maps} maps and has {m.shared_maps()}")

for m in members:
    m.send("stop")
time.sleep(0.5)
for m in members:
    m.process.stdin.close()
for m in members:
    check(m.process.wait(TIMEOUT) == 0, f"member {m.index} ends with {m.process.returncode}")

lost = 0
for m in all_members:
    check(not m.lines("wrong"), f"member {m.index}: wrong: {m.lines('wrong')}")
    for index, pid, *why in m.lines("lost"):
        lost += 1
        check(int(pid) in killed, f"member {m.index} lost {index}, process {pid}, which was alive: {' '.join(why)}")
for m in survivors:
    for peer in survivors:
        joined = [pid for index, pid in m.lines("joined") if int(index) == peer.index]
        check(len(joined) <= 1, f"{m.index} connected to {peer.index} again although neither was killed")
print(f"{len(killed)} of {len(all_members)} killed, {stops} stopped, {len(survivors)} of the first {MEMBERS} survived, {lost} connections to the "
      f"killed ended, no other; {sum(later.values())} messages, {misrouted(sums)} packets forwarded or dropped, "
      f"{sums.get('udp_steering_updates', 0)} steering programs")
