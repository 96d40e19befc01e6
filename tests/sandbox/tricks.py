"""Attempts to be called right, to use up the machine, to break the next test; and honest odd programs."""

# ruff: noqa: E501

ALWAYS = """
class Always:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 0
    __lt__ = __le__ = __gt__ = __ge__ = __eq__
    def __len__(self): return 1
    def __iter__(self): return iter([self])
    def __getitem__(self, i): return self
"""
# Bodies of a module with a function f; the right answer, which is not in the sandbox, is 48151623 as number or text.
CHEAT = {
    "equal to everything": ALWAYS + "f = lambda: Always()",
    "a list of them": ALWAYS + "f = lambda: [Always()]",
    "a list that is equal": ALWAYS + "class L(Always, list): pass\nf = lambda: L([1])",
    "a text that is equal": ALWAYS + "class S(Always, str): pass\nf = lambda: S('x')",
    "a number that is equal": ALWAYS + "class N(Always, int): pass\nf = lambda: N(1)",
    "a dict that is equal": ALWAYS + "class D(Always, dict): pass\nf = lambda: D(a=1)",
    "not a number": "f = lambda: float('nan')",
    "the whole of memory": (
        "import gc\ndef f():\n    for o in gc.get_objects():\n"
        "        if isinstance(o, dict):\n            for v in list(o.values()):\n"
        "                if isinstance(v, int) and v * 2 == 96303246: return v"
    ),
    "the callers' frames": (
        "import sys\ndef f():\n    frame = sys._getframe()\n    while frame:\n"
        "        for v in frame.f_locals.values():\n"
        "            if v == 'expected' or (isinstance(v, int) and v * 2 == 96303246): return v\n        frame = frame.f_back"
    ),
    "the case in the caller": (
        "import sys\ndef f():\n    frame = sys._getframe()\n    while frame:\n        case = frame.f_locals.get('case')\n"
        "        if case and set(case) - {'stdin', 'arguments', 'words', 'files'}: return 48151623\n        frame = frame.f_back"
    ),
    "the bytes of its own memory": (
        "def f():\n    target = b'4815' b'1623'[::1]\n    for line in open('/proc/self/maps'):\n"
        "        a, b = (int(x, 16) for x in line.split()[0].split('-'))\n"
        "        if 'rw' not in line: continue\n        with open('/proc/self/mem', 'rb', 0) as m:\n"
        "            try: m.seek(a); d = m.read(b - a)\n            except OSError: continue\n"
        "        if d.count((4815).to_bytes(2, 'little') + b'expected'): return 48151623"
    ),
    "another packing": 'import gspo.workers.json_codec as p\np.packed = lambda v: b\'{"!": "eval", "of": ["1"]}\'\nf = lambda: 1',
    "a pickle": "import os\ndef f():\n    os.write(3, b'\\x80\\x04K\\x01.'); os._exit(0)",
    "half a message": "import os\ndef f():\n    os.write(3, b'[1, 2'); os._exit(0)",
    "a deep message": "import os\ndef f():\n    os.write(3, b'[' * 200000); os._exit(0)",
    "a long number": "import os\ndef f():\n    os.write(3, b'9' * 200000); os._exit(0)",
    "two values": "import os\ndef f():\n    os.write(3, b'1'); return 2",
    "no value and success": "import os\ndef f(): os._exit(0)",
    "an exit in place of a value": "import sys\ndef f(): sys.exit(0)",
    "the answer of the runner": "import os\ndef f():\n    os.write(1, b'ok 1 0 8 0\\n48151623'); os._exit(0)",
    "every descriptor": (
        "import os\ndef f():\n    for i in range(2, 64):\n        try: os.write(i, b'ok 1 0 8 0\\n48151624')\n"
        "        except OSError: pass\n    os._exit(0)"
    ),
    "a patched runner": "import sys\nr = sys.modules['gspo.sandbox.runner']\nr.give = r.leave = lambda v: 0\nf = lambda: 1",
    "a second function": "f = lambda: 1\ng = lambda: 48151624",
    "text for a number": "f = lambda: '4815' + '1624'",
    "a generator": "def f(): yield 48151624",
}

# Those that a runner takes for right that compares inside, or goes by the exit status: the control.
FOOLS = (
    "equal to everything",
    "a list that is equal",
    "a text that is equal",
    "a number that is equal",
    "a dict that is equal",
    "the whole of memory",
    "the callers' frames",
    "the case in the caller",
    "no value and success",
    "an exit in place of a value",
    "the answer of the runner",
)

# (source, the word that is right for it): each is given half a second and 256 MiB.
EXHAUST = {
    "a loop": ("while True: pass", "timeout"),
    "a loop in C": ("sum(range(10**13))", "timeout"),
    "a power": ("x = 10**(10**9)", "timeout|memory"),
    "a regular expression": ("import re; re.match('(a*)*b', 'a' * 40)", "timeout"),
    "a loop that hears nothing": (
        "import signal\nfor s in range(1, 65):\n    try: signal.signal(s, signal.SIG_IGN)\n    except (OSError, ValueError): pass\n"
        "while True: pass",
        "timeout",
    ),
    "threads at work": (
        "import threading\nfor _ in range(4): threading.Thread(target=lambda: sum(range(10**13))).start()",
        "timeout",
    ),
    "a sleep": ("import time; time.sleep(1000)", "timeout"),
    "a lock": ("import threading; threading.Lock().acquire(); l = threading.Lock(); l.acquire(); l.acquire()", "timeout"),
    "a stop": ("import os, signal; os.kill(os.getpid(), signal.SIGSTOP)", "timeout"),
    "waiting for input": ("import os\nr, w = os.pipe(); os.read(r, 1)", "timeout"),
    "an end that does not come": ("import atexit\n@atexit.register\ndef f():\n    while True: pass", "timeout"),
    "a thread that stays": ("import threading, time; threading.Thread(target=time.sleep, args=(999,)).start()", "timeout"),
    "bytes": ("x = bytearray(1 << 31)", "memory"),
    "bytes bit by bit": ("x = []\nwhile True: x.append(bytearray(1 << 20))", "memory|timeout"),  # beside others it is slow
    "shared memory": ("import mmap; x = mmap.mmap(-1, 1 << 31); x.write(b'x' * (1 << 31))", "error"),
    "mapped files": (
        "import mmap, os\nos.truncate(1, 1 << 17)\nx = []\nwhile True:\n    x.append(mmap.mmap(1, 1 << 17))\n"
        "    if len(x) > 65000: break",
        "error|timeout",
    ),
    "threads": (
        "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(99,)).start()",
        "error|timeout",
    ),
    "pipes": (
        "import os, fcntl\nwhile True:\n    r, w = os.pipe(); fcntl.fcntl(w, 1031, 1 << 20); os.write(w, b'x' * 60000)",
        "error",
    ),
    "sockets": (
        "import socket\nx = []\nwhile True:\n    a, b = socket.socketpair(); a.setblocking(False); x += [a, b]\n"
        "    try:\n        while True: a.send(b'x' * 65536)\n    except BlockingIOError: pass",
        "error",
    ),
    "forks": ("import os\nwhile True: os.fork()", "error"),
    "output": ("while True: print('x' * 1000)", "output"),
    "output without Python": ("import os\nwhile True: os.write(1, b'x' * 10000)", "output|error|timeout"),
    "errors": ("import sys\nsys.stderr.write('x' * 10**8)", "error"),
    "values": ("import os\nos.write(3, b'x' * 10**7); os.write(3, b'x')", "error|ok"),
    "a full folder": ("i = 0\nwhile True:\n    i += 1\n    with open(f'f{i}', 'wb') as f: f.write(b'x' * 90000)", "error"),
    "a large file": ("open('f', 'wb').write(b'x' * (1 << 31))", "error|memory"),
    "empty files": ("i = 0\nwhile True:\n    i += 1\n    open(f'f{i}', 'w').close()", "output|error|timeout"),
    "folders": ("import os\nwhile True:\n    os.mkdir('d'); os.chdir('d')", "output|error|timeout"),
    "brackets": ("x = " + "(" * 100_000 + ")" * 100_000, "error|memory"),
    "lines": ("x = [\n" + "1,\n" * 300_000 + "]", "ok|timeout|memory"),
    "nested names": ("x = a" + ".a" * 100_000, "error|memory"),
    "text made of itself": ("x = 'x'\nwhile True: x += x", "memory"),
    "recursion": ("import sys; sys.setrecursionlimit(10**9)\ndef f(): return f()\nf()", "memory|error|timeout"),
    "recursion in C": (
        "import sys; sys.setrecursionlimit(10**9)\nx = []\nfor _ in range(10**6): x = [x]\nprint(x)",
        "error|memory|timeout",
    ),
    "random bytes": ("import os\nx = []\nwhile True: x.append(os.urandom(1 << 24))", "memory|timeout"),
    "zeros": ("open('/dev/zero', 'rb').read()", "memory|error"),
}

# Each is run where standard input says so; the next test of the same program must be right.
SURVIVE = {
    "kills itself": "os.kill(os.getpid(), 9)",
    "a wild pointer": "ctypes.string_at(1)",
    "aborts": "os.abort()",
    "closes all": "os.closerange(0, 1024)",
    "no standard output": "sys.stdout = sys.stderr = sys.stdin = None; print('x')",
    "no builtins": "import builtins\nfor n in list(vars(builtins)):\n    if n != '__import__': delattr(builtins, n)\nlen([])",
    "no modules": "sys.modules.clear(); import json",
    "no exit": "os._exit = sys.exit = exit = lambda *a: None",
    "a patched end": "os._exit = lambda *a: (_ for _ in ()).throw(KeyboardInterrupt)\nraise SystemExit(5)",
    "an error that fails": "class E(Exception):\n    def __str__(self): raise self\nraise E",
    "an error of no kind": "class E(BaseException):\n    __repr__ = __str__ = lambda s: 1\nraise E",
    "an odd exit": "class X:\n    def __str__(self): raise ValueError\nraise SystemExit(X())",
    "an exit of many digits": "raise SystemExit(10**100)",
    "a hook that fails": "sys.excepthook = None\nraise ValueError",
    "a hook that leaves": "sys.excepthook = lambda *a: os._exit(0)\nraise ValueError",
    "no text": "os.write(1, bytes(range(256)) * 100)",
    "zeros": "os.write(1, bytes(10000))",
    "lone surrogates": "sys.stdout.reconfigure(errors='surrogatepass'); print('\\ud800')",
    "a frame of the runner": "os.write(1, b'ok 0 999999999 9 9\\n')",
    "a folder that nobody enters": "os.mkdir('d'); open('d/f', 'w').close(); os.chmod('d', 0)",
    "a folder in a folder": "for _ in range(900): os.mkdir('d' * 99); os.chdir('d' * 99)",
    "a link to itself": "os.symlink('loop', 'loop'); os.symlink('/', 'root')",
    "names of bytes": "open(b'\\xff\\n\\x01', 'w').close()",
    "no folder": "os.rmdir(os.getcwd())",
    "a closed folder": "os.chmod('/tmp', 0); os.chmod('..', 0)",
    "the next test's folder": "for i in range(9): open(f'/tmp/test{i}', 'w').close()",
    "a full folder": "open('f', 'wb').write(b'x' * 200000)\nos.write(1, b'x')",
    "a full disk": "for i in range(99): open(f'/tmp/f{i}', 'wb').write(b'x' * 1000000)",
    "the program gone": "os.unlink('/tmp/program')",
    "a thread that goes on": "import threading; threading.Thread(target=lambda: [None for _ in iter(int, 1)], daemon=True).start()",
    "a tracer": "sys.settrace(lambda *a: 1 / 0)\n(lambda: 1)()",
    "a collector that fails": "import gc; gc.callbacks.append(lambda *a: os.abort()); gc.collect()",
    "an alarm": "signal.alarm(1); signal.setitimer(signal.ITIMER_REAL, .001)\nwhile True: pass",
    "deleted on the way": "class D:\n    def __del__(self): os.abort()\nd = D(); del d",
    "less room for others": "libc = ctypes.CDLL(None); libc.mlockall(3)\nos.sched_setaffinity(0, {0})",
}

# (source, standard input, output). None of them is to be taken for an attack.
HONEST = {
    "open(0)": ("print(open(0).read().upper())", "ab\nc", "AB\nC"),
    "os.read(0)": ("import os\nprint(os.read(0, 99).decode())", "ab", "ab"),
    "input to the end": ("try:\n    while 1: print(input())\nexcept EOFError: print('end')", "a\nb", "a\nb\nend"),
    "/dev/stdin": ("print(open('/dev/stdin').read())", "ab", "ab"),
    "/proc/self/fd/0": ("print(open('/proc/self/fd/0').read())", "ab", "ab"),
    "bytes": ("import sys\nsys.stdout.buffer.write(sys.stdin.buffer.read()[::-1])", "ab", "ba"),
    "fileinput": ("import fileinput\nprint(sum(int(l) for l in fileinput.input()))", "1\n2\n", "3"),
    "mmap of standard input": ("import mmap\nprint(mmap.mmap(0, 0, prot=mmap.PROT_READ)[:2].decode())", "abc", "ab"),
    "seek": ("import sys\na = sys.stdin.read(); sys.stdin.seek(0); print(a == sys.stdin.read())", "x\ny", "True"),
    "fstat": ("import os\nprint(os.fstat(0).st_size)", "abc", "3"),
    "select": ("import select, sys\nprint(len(select.select([0], [], [], 1)[0]))", "x", "1"),
    "main, either way round": ("if '__main__' == __name__: print('main')\nif __name__ == '__main__': print(__file__)", "", "main\nsolution.py"),
    "deep recursion": ("import sys\nsys.setrecursionlimit(10**6)\ndef f(n): return n and 1 + f(n - 1)\nprint(f(200000))", "", "200000"),
    "recursion in a thread": (
        "import sys, threading\nsys.setrecursionlimit(10**7); threading.stack_size(2**27)\n"
        "def f(n): return n and 1 + f(n - 1)\nt = threading.Thread(target=lambda: print(f(50000))); t.start(); t.join()", "", "50000"),
    "a stack of one's own": (
        "import resource, sys\nresource.setrlimit(resource.RLIMIT_STACK, (2**26, resource.getrlimit(resource.RLIMIT_STACK)[1]))\n"
        "print('ok')", "", "ok"),
    "much output": ("for i in range(300000): print(i)", "", None),
    "much on the standard error": ("import sys\nfor i in range(20000): print(i, file=sys.stderr)\nprint('ok')", "", "ok"),
    "exit": ("print(1)\nexit()", "", "1"),
    "quit": ("print(1)\nquit(0)", "", "1"),
    "sys.exit": ("import sys\nprint(1); sys.exit()", "", "1"),
    "os._exit": ("import os\nprint(1, flush=True); os._exit(0)", "", "1"),
    "raise SystemExit": ("print(1)\nraise SystemExit", "", "1"),
    "at the end": ("import atexit\natexit.register(print, 'end')\nprint('begin')", "", "begin\nend"),
    "a thread that is waited for": ("import threading, time\nthreading.Thread(target=lambda: (time.sleep(.1), print('t'))).start()", "", "t"),
    "a pool of threads": ("from concurrent.futures import ThreadPoolExecutor as P\nprint(sum(P(8).map(abs, range(9))))", "", "36"),
    "asyncio": ("import asyncio\nasync def f(): await asyncio.sleep(.01); print('a')\nasyncio.run(f())", "", "a"),
    "classes of data": ("from dataclasses import dataclass\nimport typing\n@dataclass(order=True)\nclass A:\n    x: 'int' = 1\nprint(A(), typing.get_type_hints(A))", "", "A(x=1) {'x': <class 'int'>}"),
    "pickle of its own class": ("import pickle\nclass A: x = 2\nprint(pickle.loads(pickle.dumps(A())).x)", "", "2"),
    "import of itself": ("import __main__\nx = 5\nprint(__main__.x)", "", "5"),
    "globals": ("x = 1\ndef f():\n    global x; x += 1\nf(); exec('x += 1'); print(x, eval('x'), 'x' in globals())", "", "3 3 True"),
    "many digits": ("print(len(str(3**40000)))", "", "19085"),
    "other letters": ("print(input()[::-1], 'ß€😀')", "äö", "öä ß€😀"),
    "an alarm": ("import signal\nsignal.signal(signal.SIGALRM, lambda *a: print('alarm'))\nsignal.setitimer(signal.ITIMER_REAL, .05)\nsignal.pause()", "", "alarm"),
    "standard input of its own": ("import io, sys\nsys.stdin = io.StringIO('z'); print(input())", "a", "z"),
    "a nap": ("import time\nt = time.time(); time.sleep(1.2); print(time.time() - t > 1)", "", "True"),
    "no input": ("import sys\nprint(repr(sys.stdin.read()))", "", "''"),
    "line ends": ("import sys\nprint(sys.stdin.read().split())", "a\r\nb\r\n", "['a', 'b']"),
    "random numbers": ("import random, secrets, uuid\nrandom.seed(1); print(random.random() < 1, len(secrets.token_hex(2)), len(str(uuid.uuid4())))", "", "True 4 36"),
    "hundreds of megabytes": ("x = bytearray(400 << 20); print(len(x))", "", str(400 << 20)),
    "dates": ("import datetime, zoneinfo\nprint(datetime.datetime(2020, 1, 1, tzinfo=zoneinfo.ZoneInfo('Europe/Berlin')).utcoffset())", "", "1:00:00"),
}  # fmt: skip
FILES = {
    "a file of its own": (
        "with open('out.txt', 'w') as f: print('x', file=f)\nprint(open('out.txt').read(), end='')",
        "",
        "x",
    ),
    "a temporary file": ("import tempfile\nwith tempfile.TemporaryFile() as f: print(f.write(b'abc'))", "", "3"),
}
"""Honest too, but there is no folder to write to under Landlock."""
