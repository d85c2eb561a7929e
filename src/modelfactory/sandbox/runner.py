"""What runs inside the sandbox: takes the limits on itself, then executes the program in this interpreter.

Started as `python runner.py FD UID MEMORY PROCESSES FILE FOLDER` with the program on standard input; reports
one word on FD. It imports only what is built in, because each start pays for what it imports. The report
keeps accidents apart (a program that calls `os._exit(0)` has not passed); code that sets out to forge it can.
"""

from __future__ import annotations

import os
import resource
import sys


def limit(uid: int, memory: int, processes: int, file: int) -> None:
    """Become another user, for whom a limit on processes binds (0: stay), and take the limits on."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (file, file))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    if processes:
        resource.setrlimit(resource.RLIMIT_NPROC, (processes, processes))
    if uid:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)


def take_program(folder: str) -> str:
    """Write the program to a file, so that tracebacks show its lines; leave nothing on standard input."""
    path = os.path.join(folder, "program.py")  # noqa: PTH118  pathlib costs 8 ms to import
    with open(path, "wb") as file:  # noqa: PTH123
        while piece := os.read(0, 1 << 20):
            file.write(piece)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    return path


def execute(path: str) -> str:
    """Execute the program; return what became of it. Its error is printed as Python prints it."""
    names = {"__name__": "__main__", "__file__": path, "__builtins__": __builtins__}
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            source = file.read()
        exec(compile(source, path, "exec"), names)  # noqa: S102  this is what the sandbox is for
        sys.stdout.flush()
        sys.stderr.flush()
    except SystemExit:
        return "exit"
    except MemoryError:
        names.clear()
        os.write(2, b"MemoryError\n")
        return "memory"
    except BaseException as error:  # noqa: BLE001  whatever a program raises is its outcome
        of_program = error.__traceback__ and error.__traceback__.tb_next
        sys.__excepthook__(type(error), error.with_traceback(of_program), of_program)
        return "failed"
    return "passed"


def main() -> None:
    """Run the program on standard input and report."""
    fd, uid, memory, processes, file = map(int, sys.argv[1:6])
    os.chdir(sys.argv[6])
    limit(uid, memory, processes, file)
    path = take_program(sys.argv[6])
    sys.argv = [path]
    first = os.getpid()
    word = execute(path)
    if os.getpid() == first:  # a program's forked children come here too
        os.write(fd, word.encode())
    os._exit(0 if word == "passed" else 1)


if __name__ == "__main__":
    main()
