"""Runs a command line of Python in a fork of the warm process, and ends as that fork ends.

What a caller sees of a child is here as with Python itself: its output, its exit code or signal,
the files it inherits, the signals it is sent, and that killing it kills it.
"""

import json
import os
import signal
import socket
import struct
import sys

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def main(address: str) -> None:
    """Hand everything over, pass signals on, and wait."""
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    files = [file for file in map(int, os.listdir("/dev/fd")) if _is_inherited(file)]
    found = {"cwd": os.getcwd(), "env": dict(os.environ), "files": files}
    text = json.dumps({"argv": sys.argv[1:], **found}).encode()
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(address)
        socket.send_fds(server, [struct.pack("!I", len(text))], files)
        server.sendall(text)
        for each in FORWARDED:
            if signal.getsignal(each) is not signal.SIG_IGN:
                signal.signal(each, lambda number, _: server.sendall(bytes([number])))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
        answer = server.recv(4, socket.MSG_WAITALL)
    if not answer:
        sys.exit("the warm process is gone")
    (code,) = struct.unpack("!i", answer)
    if code >= 0:
        os._exit(code)
    if -code != signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)


def _is_inherited(file: int) -> bool:
    try:
        return os.get_inheritable(file)
    except OSError:
        return False  # what listed them
