"""Hostile C++: against the compiler, and as programs. By kind as in attacks.py and tricks.py.

CONTAIN: what it got stands in its output, or in what the compiler says. HOST has the same as there: secret, a file that
anybody may read outside, whose text is the token; port, that of a server.
"""

SHOW = """
extern const char b[], e[];
#include <cstdio>
int main() { fwrite(b, 1, e - b, stdout); }
"""
INCBIN = 'asm(".section .rodata\\nb: .incbin \\"{path}\\"\\ne: .byte 0\\n.text\\n.globl b\\n.globl e");' + SHOW
READ = """
#include <cstdio>
char s[4096];
int main() { if (FILE *f = fopen("{path}", "r")) fwrite(s, 1, fread(s, 1, 4096, f), stdout); }
"""


def breach(condition, head=""):
    return f'#include <bits/stdc++.h>\n{head}\nint main() {{ if ({condition}) puts("BREACH"); else puts("held"); }}'


CONTAIN = {
    "an include of a file of the user": '#include "{secret}"\nint main() {}',
    "an include of users": '#include "/etc/passwd"\nint main() {}',
    "an include of what it was started with": "#include </dev/stdin>\nint main() {}",
    "an include of the request": '#include "/proc/self/fd/0"\nint main() {}',
    "an include of its environment": '#include "/proc/self/environ"\nint main() {}',
    "bytes of a file of the user": INCBIN.replace("{path}", "{secret}"),
    "bytes of the request": INCBIN.replace("{path}", "/proc/self/fd/0"),
    "an assembler's include": 'asm(".include \\"{secret}\\"");\nint main() {}',
    "a file that is embedded": '#include <cstdio>\nconst char s[] = {\n#embed "{secret}"\n, 0};\nint main() { puts(s); }',
    "a probe for a file of the user": breach("1", '#if !__has_include("{secret}")\n#error held\n#endif'),
    "lines of another file in a diagnostic": '#line 1 "{secret}"\nint main() { return x; }',
    "a precompiled header of another's": '#pragma GCC pch_preprocess "{secret}"\nint main() {}',
    "options in comments": "// -fplugin={secret}\n/* @{secret} -include {secret} */\n#pragma GCC "
    'optimize("include={secret}")\nint main() {}',
    "a linker's input": '#pragma GCC diagnostic error "-Wl,{secret}"\nasm(".section .drectve\\n.ascii \\" '
    '{secret}\\"");\nint main() {}',
    "a file of the user": READ.replace("{path}", "{secret}"),
    "its own environment": "#include <cstdio>\nextern char **environ;\nint main() { for (char **v = environ; *v; "
    "v++) puts(*v); }",
    "a process": breach("fork() >= 0 || vfork() >= 0", "#include <unistd.h>"),
    "a call of 32 bits": breach('[] { long r; asm volatile("int $0x80" : "=a"(r) : "a"(20) : "memory"); return r > 0; }()'),
}
"""Programs that nobody has a right to."""
EXHAUST = {
    "templates that double": "template<int N, int M> struct A { static const long v = A<N - 1, 2 * M>::v + A<N - "
    "1, 2 * M + 1>::v; };\n"
    "template<int M> struct A<0, M> { static const long v = M; };\nint main() { return A<29, 1>::v; }",
    "a loop in a constant": "constexpr long f() { long s = 0; for (long i = 0; i < 1000000000000L; i++) s += i; "
    "return s; }\n"
    "static_assert(f());\nint main() {}",
    "a program of a gigabyte": "char a[1 << 30] = {1};\nint main() { return a[5]; }",
    "an endless repetition": 'asm(".rept 2000000000\\nnop\\n.endr");\nint main() {}',
    "messages without an end": "\n".join(
        ["#define E(n) int x##n = undefined_name_##n;"] + [f"E({i})" for i in range(60_000)]
    )
    + "\nint main() {}",
}
"""Programs that the compiler would spend the machine on."""
SPEND = {
    "memory": (
        "#include <vector>\nint main() { std::vector<char> v; for (;;) v.resize(v.size() + (64 << 20), 1); }",
        "memory",
    ),
    "time": ("int main() { volatile long i = 0; for (;;) i = i + 1; }", "timeout"),
    "stack": (
        "int f(int n) { volatile int a[999]; a[0] = n; return f(n + 1) + a[0]; }\nint main() { return f(0); }",
        "error|memory",
    ),
    "threads": (
        "#include <thread>\n#include <vector>\nint main() { std::vector<std::thread> t; for (;;) t.emplace_back([] "
        "{ for (;;); }); }",
        "error|timeout",
    ),
}
"""What a test of a program that was compiled may use up, and what becomes of it."""
SURVIVE = {
    "the program removes itself": 'unlink("../program"); unlink("/proc/self/exe"); rmdir("..");',
    "the program leaves another": (
        'unlink("../program"); if (FILE *f = fopen("../program", "w")) { fputs("#!/bin/sh\\necho other\\n", f); fclose(f); }'
        'chmod("../program", 0777);'
    ),
    "the program kills all": "kill(-1, 9); kill(0, 9); kill(getppid(), 9); abort();",
    "the program becomes another": 'char *none[] = {nullptr}; execve("/usr/bin/yes", none, none); '
    'execve("/bin/sh", none, none);',
    "the program leaves its group": "setsid(); setpgid(0, 0); raise(SIGSTOP);",
}
"""What a test may do beside the tests that come after it. The next reply is run as ever in any case."""
