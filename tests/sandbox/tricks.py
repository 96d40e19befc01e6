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
ANSWER = b"".join(len(part).to_bytes(4, "big") + part for part in (b"ok", b"1", b"", b"48151623", b""))  # the runner's
# Bodies of a module with a function f; the right answer, which is not in the sandbox, is 48151623 as number or text.
CHEAT = {
    "equal to everything": ALWAYS + "f = lambda: Always()",
    "a list that is equal": ALWAYS + "class L(Always, list): pass\nf = lambda: L([1])",
    "a number that is equal": ALWAYS + "class N(Always, int): pass\nf = lambda: N(1)",
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
    "another packing": 'import gspo.workers.json_codec as p\np.packed = lambda v: b\'{"!": "eval", "of": ["1"]}\'\nf = lambda: 1',
    "a pickle": "import os\ndef f():\n    os.write(3, b'\\x80\\x04K\\x01.'); os._exit(0)",
    "half a message": "import os\ndef f():\n    os.write(3, b'[1, 2'); os._exit(0)",
    "no value and success": "import os\ndef f(): os._exit(0)",
    "the answer of the runner": f"import os\ndef f():\n    os.write(1, {ANSWER!r}); os._exit(0)",
    "every descriptor": (
        f"import os\ndef f():\n    for i in range(2, 64):\n        try: os.write(i, {ANSWER!r})\n"
        "        except OSError: pass\n    os._exit(0)"
    ),
    "a patched runner": "import sys\nr = sys.modules['gspo.sandbox.runner']\nr.write = r.finish = lambda *v: 0\nf = lambda: 1",
}

# (source, the word that is right for it): each is given half a second and 256 MiB.
EXHAUST = {
    "a loop": ("while True: pass", "timeout"),
    "a regular expression": ("import re; re.match('(a*)*b', 'a' * 40)", "timeout"),
    "a loop that hears nothing": ("import signal\nfor s in range(1, 65):\n    try: signal.signal(s, signal.SIG_IGN)\n    except (OSError, ValueError): pass\nwhile True: pass", "timeout"),
    "a sleep": ("import time; time.sleep(1000)", "timeout"),
    "a stop": ("import os, signal; os.kill(os.getpid(), signal.SIGSTOP)", "timeout"),
    "bytes bit by bit": ("x = []\nwhile True: x.append(bytearray(1 << 20))", "memory|timeout"),
    "shared memory": ("import mmap; x = mmap.mmap(-1, 1 << 31); x.write(b'x' * (1 << 31))", "error"),
    "mapped files": ("import mmap, os\nos.truncate(1, 1 << 17)\nx = []\nwhile True:\n    x.append(mmap.mmap(1, 1 << 17))\n    if len(x) > 65000: break", "error|timeout"),
    "threads": ("import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(99,)).start()", "error|timeout"),
    "pipes": ("import os, fcntl\nwhile True:\n    r, w = os.pipe(); fcntl.fcntl(w, 1031, 1 << 20); os.write(w, b'x' * 60000)", "error"),
    "forks": ("import os\nwhile True: os.fork()", "error"),
    "output": ("while True: print('x' * 1000)", "output"),
    "errors": ("import sys\nsys.stderr.write('x' * 10**8)", "error"),
    "values": ("import os\nos.write(3, b'x' * 10**7); os.write(3, b'x')", "error|ok"),
    "a full folder": ("i = 0\nwhile True:\n    i += 1\n    with open(f'f{i}', 'wb') as f: f.write(b'x' * 90000)", "error"),
    "a large file": ("open('f', 'wb').write(b'x' * (1 << 31))", "error|memory"),
    "a deleted file": ("import os\nf = []\nwhile True:\n    f.append(open('f', 'wb')); os.unlink('f')\n    for _ in range(90): f[-1].write(b'x' * 1000)", "error"),
    "deleted files that are mapped": ("import mmap, os\nx = []\nwhile True:\n    with open('f', 'w+b') as f: f.write(b'x' * 90000); f.flush(); x.append(mmap.mmap(f.fileno(), 4096))\n    os.unlink('f')", "error|timeout"),
    "folders in folders": ("import os\nwhile True: os.mkdir('d'); os.chdir('d')", "output|timeout|error"),
    "files in a folder that cannot be listed": ("import os\ntry: os.mkdir('d', 0o300)\nexcept OSError: os.abort()\ni = 0\nwhile True:\n    i += 1\n    open(f'd/f{i}', 'wb').write(b'x' * 90000)", "error"),
    "empty files": ("i = 0\nwhile True:\n    i += 1\n    open(f'f{i}', 'w').close()", "output|error|timeout"),
    "brackets": ("x = " + "(" * 100_000 + ")" * 100_000, "error|memory"),
    "recursion": ("import sys; sys.setrecursionlimit(10**9)\ndef f(): return f()\nf()", "memory|error|timeout"),
}  # fmt: skip

# Each is run where standard input says so; the next test of the same program must be right.
SURVIVE = {
    "kills itself": "os.kill(os.getpid(), 9)",
    "a wild pointer": "ctypes.string_at(1)",
    "closes all": "os.closerange(0, 1024)",
    "no standard output": "sys.stdout = sys.stderr = sys.stdin = None; print('x')",
    "a link in its place": "d = os.getcwd(); os.symlink('/usr', d + '/a'); os.rename(d, d + 'x'); os.symlink('/usr', d)",
    "folders in folders": "try:\n    for _ in range(3000): os.mkdir('d'); os.chdir('d')\nexcept OSError: pass",
    "a folder that nobody may list": "os.mkdir('d', 0o300); open('d/f', 'w').close()",
    "no modules": "sys.modules.clear(); import json",
    "a patched end": "os._exit = lambda *a: (_ for _ in ()).throw(KeyboardInterrupt)\nraise SystemExit(5)",
    "an error that fails": "class E(Exception):\n    def __str__(self): raise self\nraise E",
    "an odd exit": "class X:\n    def __str__(self): raise ValueError\nraise SystemExit(X())",
    "a hook that fails": "sys.excepthook = None\nraise ValueError",
    "no text": "os.write(1, bytes(range(256)) * 100)",
    "lone surrogates": "sys.stdout.reconfigure(errors='surrogatepass'); print('\\ud800')",
    "a message of the runner": "os.write(1, b'\\0\\0\\0\\2ok')",
    "a folder that nobody enters": "os.mkdir('d'); open('d/f', 'w').close(); os.chmod('d', 0)",
    "a link to itself": "os.symlink('loop', 'loop'); os.symlink('/', 'root')",
    "a closed folder": "os.chmod('/tmp', 0); os.chmod('..', 0)",
    "the next test's folder": "for i in range(9): open(f'/tmp/test{i}', 'w').close()",
    "a full disk": "for i in range(99): open(f'/tmp/f{i}', 'wb').write(b'x' * 1000000)",
    "the program gone": "os.unlink('/tmp/program')",
    "a thread that goes on": "import threading; threading.Thread(target=lambda: [None for _ in iter(int, 1)], daemon=True).start()",
    "a collector that fails": "import gc; gc.callbacks.append(lambda *a: os.abort()); gc.collect()",
    "less room for others": "libc = ctypes.CDLL(None); libc.mlockall(3)\nos.sched_setaffinity(0, {0})",
}

# (source, standard input, output). None of them is to be taken for an attack.
HONEST = {
    "open(0)": ("print(open(0).read().upper())", "ab\nc", "AB\nC"),
    "/dev/stdin": ("print(open('/dev/stdin').read())", "ab", "ab"),
    "bytes": ("import sys\nsys.stdout.buffer.write(sys.stdin.buffer.read()[::-1])", "ab", "ba"),
    "mmap of standard input": ("import mmap\nprint(mmap.mmap(0, 0, prot=mmap.PROT_READ)[:2].decode())", "abc", "ab"),
    "fstat": ("import os\nprint(os.fstat(0).st_size)", "abc", "3"),
    "main, either way round": ("if '__main__' == __name__: print('main')\nif __name__ == '__main__': print(__file__)", "", "main\nsolution.py"),
    "deep recursion": ("import sys\nsys.setrecursionlimit(10**6)\ndef f(n): return n and 1 + f(n - 1)\nprint(f(200000))", "", "200000"),
    "recursion in a thread": (
        "import sys, threading\nsys.setrecursionlimit(10**7); threading.stack_size(2**27)\n"
        "def f(n): return n and 1 + f(n - 1)\nt = threading.Thread(target=lambda: print(f(50000))); t.start(); t.join()", "", "50000"),
    "much output": ("for i in range(300000): print(i)", "", None),
    "much on the standard error": ("import sys\nfor i in range(20000): print(i, file=sys.stderr)\nprint('ok')", "", "ok"),
    "sys.exit": ("import sys\nprint(1); sys.exit()", "", "1"),
    "os._exit": ("import os\nprint(1, flush=True); os._exit(0)", "", "1"),
    "at the end": ("import atexit\natexit.register(print, 'end')\nprint('begin')", "", "begin\nend"),
    "a thread that is waited for": ("import threading, time\nthreading.Thread(target=lambda: (time.sleep(.1), print('t'))).start()", "", "t"),
    "asyncio": ("import asyncio\nasync def f(): await asyncio.sleep(.01); print('a')\nasyncio.run(f())", "", "a"),
    "classes of data": ("from dataclasses import dataclass\nimport typing\n@dataclass(order=True)\nclass A:\n    x: 'int' = 1\nprint(A(), typing.get_type_hints(A))", "", "A(x=1) {'x': <class 'int'>}"),
    "pickle of its own class": ("import pickle\nclass A: x = 2\nprint(pickle.loads(pickle.dumps(A())).x)", "", "2"),
    "many digits": ("print(len(str(3**40000)))", "", "19085"),
    "other letters": ("print(input()[::-1], 'ß€😀')", "äö", "öä ß€😀"),
    "an alarm": ("import signal\nsignal.signal(signal.SIGALRM, lambda *a: print('alarm'))\nsignal.setitimer(signal.ITIMER_REAL, .05)\nsignal.pause()", "", "alarm"),
    "a nap": ("import time\nt = time.time(); time.sleep(1.2); print(time.time() - t > 1)", "", "True"),
    "line ends": ("import sys\nprint(sys.stdin.read().split())", "a\r\nb\r\n", "['a', 'b']"),
    "dates": ("import datetime, zoneinfo\nprint(datetime.datetime(2020, 1, 1, tzinfo=zoneinfo.ZoneInfo('Europe/Berlin')).utcoffset())", "", "1:00:00"),
    "asyncio and a thread": ("import asyncio\nasync def f(): return await asyncio.wait_for(asyncio.to_thread(lambda: 7), 9)\nprint(asyncio.run(f()))", "", "7"),
    "a pair of sockets": ("import socket, select\na, b = socket.socketpair(); a.sendall(b'x'); select.select([b], [], []); print(b.recv(9), a.getsockname() == '')", "", "b'x' True"),
    "signals of its own": ("import os, signal\nsignal.signal(signal.SIGUSR1, lambda *a: print('u'))\nos.kill(os.getpid(), signal.SIGUSR1); signal.raise_signal(signal.SIGUSR1)", "", "u\nu"),
    "a database in memory": ("import sqlite3\nprint(sqlite3.connect(':memory:').execute('select sqlite_version() > 0').fetchall())", "", "[(1,)]"),
    "chance": ("import os, random, secrets, uuid\nprint(len(os.urandom(3)), len(secrets.token_hex()), len(str(uuid.uuid4())), random.SystemRandom().random() < 1)", "", "3 64 36 True"),
    "what it may ask": ("import os, platform, resource, shutil\nprint(os.cpu_count() > 0, len(os.uname()), len(os.times()), platform.system(), resource.getrlimit(resource.RLIMIT_CPU)[0] > 0, shutil.get_terminal_size()[0] > 0)", "", "True 5 5 Linux True True"),
    "an error that it handles": ("import os, subprocess\nfor f in (os.fork, lambda: subprocess.run(['true'])):\n    try: f()\n    except OSError as e: print(e.errno)", "", "1\n1"),
    "its stack": ("import resource\nsoft, hard = resource.getrlimit(resource.RLIMIT_STACK); resource.setrlimit(resource.RLIMIT_STACK, (soft, hard)); print(1)", "", "1"),
    "a file of its own": ("with open('out.txt', 'w') as f: print('x', file=f)\nprint(open('out.txt').read(), end='')", "", "x"),
    "a temporary file": ("import tempfile\nwith tempfile.TemporaryFile() as f: print(f.write(b'abc'))", "", "3"),
    "a temporary folder": ("import os, tempfile\nwith tempfile.TemporaryDirectory() as d:\n    os.makedirs(d + '/x/y'); open(d + '/x/y/z', 'w').close(); print(os.listdir(d))", "", "['x']"),
    "a database": ("import sqlite3\nd = sqlite3.connect('a.db'); d.execute('pragma journal_mode=wal'); d.execute('create table t(x)')\nd.execute('insert into t values (2)'); d.commit(); print(d.execute('select * from t').fetchall())", "", "[(2,)]"),
    "archives": ("import tarfile, zipfile\nopen('q', 'w').write('hi')\nwith tarfile.open('t', 'w:gz') as t: t.add('q')\n"
        "with zipfile.ZipFile('z', 'w') as z: z.write('q')\nzipfile.ZipFile('z').extractall('zz'); tarfile.open('t').extractall('tt'); print(open('zz/q').read(), open('tt/q').read())", "", "hi hi"),
    "paths": ("import pathlib, shutil\np = pathlib.Path('d'); p.mkdir(); (p / 'a').write_text('x'); (p / 'a').touch(); (p / 'a').rename(p / 'b')\n"
        "(p / 'l').symlink_to('b'); (p / 'h').hardlink_to(p / 'b'); shutil.copyfile(p / 'b', p / 'c'); print(len(list(p.iterdir()))); shutil.rmtree(p)", "", "4"),
    "a mapped file": ("import mmap\nf = open('m', 'w+b'); f.truncate(8192); m = mmap.mmap(f.fileno(), 0); m[0] = 65; m.resize(16384); m.flush(); print(open('m').read(1))", "", "A"),
    "much of its own": ("import os\nfor i in range(40):\n    with open(f'f{i % 3}', 'wb') as f: f.write(b'x' * (8 << 20))\nprint(len(os.listdir()))", "", "3"),
}  # fmt: skip
