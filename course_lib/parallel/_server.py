"""The fork server: a process that imports torch once, and forks a rank of itself whenever it is asked to.

Run as a script by `_crew.py`. It imports nothing of the course and nothing of the learner's, so that a rank sees the
files as they are when it starts. It ends, with every rank, when the socket to its caller closes.

Requests on the socket, one JSON line each: {"fork": n} with 3n file descriptors (connection, stdout, stderr of each
rank) and {"kill": pid}. Answers: {"forked": [pids]}, {"exit": pid, "code": code} (negative: a signal's number).
"""

import importlib
import json
import os
import selectors
import signal
import socket
import sys
from contextlib import suppress

PRELOAD = (
    "torch",
    "torch.distributed",
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "torch.distributed.pipelining",
    "torch.distributed.device_mesh",
    "torch.distributed.checkpoint",
    "torch.nn.parallel",
    "torch._dynamo",
    "cloudpickle",
)


def main() -> None:
    """Preload, say so, then fork until the caller is gone."""
    control = socket.socket(fileno=int(sys.argv[1]))
    sys.path[:] = json.loads(sys.argv[2])
    for name in (signal.SIGINT, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)
    for module in PRELOAD:
        with suppress(ImportError):
            importlib.import_module(module)
    woken, wake = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    alive: set[int] = set()
    answer(control, {"ready": os.getpid()})
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        while True:
            ready = {key.fileobj for key, _ in selector.select()}
            if woken in ready:
                os.read(woken, 4096)
                reap(control, alive)
            if control in ready and not serve(control, alive, (woken, wake)):
                break
    for pid in alive:
        kill(pid)
    os._exit(0)


def serve(control: socket.socket, alive: set[int], pipes: tuple[int, int]) -> bool:
    """Do what one request asks; False when the caller has gone."""
    try:
        text, fds, _, _ = socket.recv_fds(control, 4096, 250)
    except ConnectionError:
        return False
    if not text:
        return False
    for line in text.decode("ascii").splitlines():
        request = json.loads(line)
        if "kill" in request:
            if request["kill"] in alive:
                kill(request["kill"])
            continue
        pids = []
        for place in range(0, len(fds), 3):
            pid = os.fork()
            if pid == 0:
                become_rank(control, pipes, fds, place)
            pids.append(pid)
        alive.update(pids)
        for fd in fds:
            os.close(fd)
        answer(control, {"forked": pids})
    return True


def become_rank(control: socket.socket, pipes: tuple[int, int], fds: list[int], place: int) -> None:
    """In the child: keep this rank's three descriptors alone and go to `_rank.main`. Never returns."""
    code = 1
    try:
        os.setpgid(0, 0)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        control.close()
        os.dup2(fds[place + 1], 1)
        os.dup2(fds[place + 2], 2)
        for fd in (*pipes, *(fd for number, fd in enumerate(fds) if number != place)):
            os.close(fd)
        begin_rank(fds[place])
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
    finally:
        os._exit(code)


def begin_rank(fd: int) -> None:
    """Take the caller's import path and working directory, then import the rank's own code and run it."""
    from multiprocessing.connection import Connection

    connection = Connection(fd)
    setup = json.loads(connection.recv_bytes())
    sys.path[:] = setup["path"]
    importlib.invalidate_caches()
    rank = importlib.import_module("course_lib.parallel._rank")
    rank.main(connection, setup)


def reap(control: socket.socket, alive: set[int]) -> None:
    """Tell the caller of every rank that has ended, and end what it has left in its process group."""
    while alive:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        alive.discard(pid)
        with suppress(OSError):
            os.killpg(pid, signal.SIGKILL)
        answer(control, {"exit": pid, "code": os.waitstatus_to_exitcode(status)})


def kill(pid: int) -> None:
    """End a rank and what it has started in its group."""
    for end in (os.killpg, os.kill):
        with suppress(OSError):
            end(pid, signal.SIGKILL)


def answer(control: socket.socket, what: dict[str, object]) -> None:
    """One line to the caller, if it is still there."""
    with suppress(OSError):
        control.sendall(json.dumps(what).encode("ascii") + b"\n")


if __name__ == "__main__":
    main()
