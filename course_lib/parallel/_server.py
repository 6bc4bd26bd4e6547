"""The fork server: a process that imports torch once, and forks a rank of itself whenever it is asked to.

Run as a script by `_crew.py`. It imports nothing of the course and nothing of the learner's, so that a rank sees the
files as they are when it starts. It ends, with every rank, when the socket to its caller closes.

Requests on the socket, one JSON line each: {"fork": ranks, "number": n} with three file descriptors a rank
(connection, stdout, stderr), {"kill": pid}, {"dump": pid}. Answers: {"forked": n, "pids": [...]} and
{"exit": pid, "code": code} (negative: a signal's number).

Where there is no `fork`, `_pool.py` runs this script as a rank that serves many calls.
"""

import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import sysconfig
from contextlib import suppress
from multiprocessing.connection import Connection

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
    """`fork FD PATH` is a fork server, `pool PORT PATH` a rank of the pool."""
    what, where, path = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.path[:] = json.loads(path)
    os.chdir(os.path.dirname(sys.executable))  # a rank goes to its caller's folder; this process keeps none busy
    if what == "pool":
        serve_calls(int(where))
    else:
        serve_forks(socket.socket(fileno=int(where)))
    os._exit(0)


def preload() -> None:
    """torch and its distributed parts. What fails here fails again in a rank, where it can be told."""
    for module in PRELOAD:
        with suppress(Exception):
            importlib.import_module(module)


def serve_forks(control: socket.socket) -> None:
    """Preload, say so, then fork until the caller is gone."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    preload()
    gc.collect()
    gc.freeze()  # what is shared with the ranks stays shared
    woken, wake = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    alive: set[int] = set()
    parent = os.getppid()
    answer(control, {"ready": True})
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        while os.getppid() == parent:
            ready = {key.fileobj for key, _ in selector.select(1.0)}
            if woken in ready:
                os.read(woken, 4096)
            reap(control, alive)
            if control in ready and not serve(control, alive, (woken, wake)):
                break
    for pid in alive:
        kill(pid)


def serve_calls(port: int) -> None:
    """A rank of the pool: call after call, until the caller is gone. The learner's modules are imported each time."""
    token = sys.stdin.buffer.read()
    preload()
    connection = Connection(socket.create_connection(("127.0.0.1", port)).detach())
    connection.send_bytes(token)
    known = set(sys.modules)
    with suppress(EOFError, OSError):
        while True:
            begin_rank(connection)
            os.chdir(os.path.dirname(sys.executable))
            libraries = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})
            for name in set(sys.modules) - known:
                file = getattr(sys.modules[name], "__file__", None) or ""
                if not file.startswith(libraries) or name.partition(".")[0] == "course_lib":
                    del sys.modules[name]
            gc.collect()


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
        if request.get("kill") in alive:
            kill(request["kill"])
        if request.get("dump") in alive:
            os.kill(request["dump"], signal.SIGUSR2)
        if "fork" in request:
            pids = []
            for place in range(0, len(fds), 3):
                pid = os.fork()
                if pid == 0:
                    become_rank(control, pipes, fds, place)
                pids.append(pid)
            alive.update(pids)
            for fd in fds:
                os.close(fd)
            answer(control, {"forked": request["number"], "pids": pids})
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
        begin_rank(Connection(fds[place]))
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
    finally:
        os._exit(code)


def begin_rank(connection: Connection) -> None:
    """Take the caller's import path, then import the rank's own code and run it."""
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
