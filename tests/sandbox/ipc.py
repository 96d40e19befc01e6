"""Queues, semaphores and memory of a user, for attempts to get at them."""

import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
PRIVATE, MODE, REMOVE = 0, 0o1666, 0  # IPC_PRIVATE; IPC_CREAT and rights for all; IPC_RMID


class Ipc:
    """One of each, with the token as a message. They are as they were if `state` is."""

    def __init__(self, token):
        self.queue = libc.msgget(PRIVATE, MODE)
        self.semaphores = libc.semget(PRIVATE, 1, MODE)
        self.memory = libc.shmget(PRIVATE, 4096, MODE)
        libc.msgsnd(self.queue, ctypes.create_string_buffer(b"\1" + bytes(7) + token.encode()), len(token), 0)
        self.posix = f"/gspo-attack-{os.getpid()}"
        os.close(libc.mq_open(self.posix.encode(), os.O_CREAT | os.O_RDWR, 0o666, None))
        names = ("queue", "semaphores", "memory")
        self.host = {name: getattr(self, name) for name in names} | {"posix": self.posix[1:]}

    def state(self):
        """Messages and their bytes, the semaphore, whether the memory and the POSIX queue are there."""
        about = (ctypes.c_ulong * 32)()
        there = libc.msgctl(self.queue, 2, about), libc.shmctl(self.memory, 2, (ctypes.c_ulong * 32)())
        named = libc.mq_open(self.posix.encode(), os.O_RDWR)
        if named >= 0:
            os.close(named)
        return *there, about[9:12], libc.semctl(self.semaphores, 0, 12), named >= 0

    def close(self):
        libc.msgctl(self.queue, REMOVE, None)
        libc.semctl(self.semaphores, 0, REMOVE)
        libc.shmctl(self.memory, REMOVE, None)
        libc.mq_unlink(self.posix.encode())
