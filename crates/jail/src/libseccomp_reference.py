"""Compiles the decisions on stdin with libseccomp and prints the programs as JSON.

stdin: {"default": ERRNO, "calls": [{"number": N, "errno": E | null, "tests": [...]}]}
A call with tests gets a program of its own, because libseccomp has one default action for a program.
"""

import json
import os
import sys
import tempfile

import seccomp
from seccomp import ALLOW, ERRNO, MASKED_EQ, NE, Arg

LOW_HALF = 0xFFFFFFFF


def is_value(test_argument, value):
    return Arg(test_argument, MASKED_EQ, LOW_HALF, value)


def bits(mask):
    return [1 << bit for bit in range(32) if mask >> bit & 1]


def exported(program):
    with tempfile.TemporaryFile() as file:
        program.export_bpf(file)
        file.seek(0)
        return file.read().hex()


def with_tests(number, tests):
    """One program for one call whose arguments decide."""
    kinds = [test["kind"] for test in tests]
    if set(kinds) == {"is"}:
        program = seccomp.SyscallFilter(defaction=ALLOW)
        for test in tests:
            program.add_rule(ERRNO(test["errno"]), number, is_value(test["argument"], test["value"]))
    elif kinds == ["any_bit"]:
        program = seccomp.SyscallFilter(defaction=ALLOW)
        (test,) = tests
        for bit in bits(test["bits"]):
            program.add_rule(ERRNO(test["errno"]), number, Arg(test["argument"], MASKED_EQ, bit, bit))
    elif kinds == ["pass_without", "any_bit"]:
        program = seccomp.SyscallFilter(defaction=ALLOW)
        guard, test = tests
        for first in bits(guard["bits"]):
            for second in bits(test["bits"]):
                program.add_rule(
                    ERRNO(test["errno"]),
                    number,
                    Arg(guard["argument"], MASKED_EQ, first, first),
                    Arg(test["argument"], MASKED_EQ, second, second),
                )
    elif kinds == ["is_not"]:
        (test,) = tests
        program = seccomp.SyscallFilter(defaction=ERRNO(test["errno"]))
        for value in test["values"]:
            program.add_rule(ALLOW, number, is_value(test["argument"], value))
    elif kinds == ["is_not", "pass_unless", "is_not"]:
        outer, guard, inner = tests
        assert outer["argument"] == guard["argument"] and len(inner["values"]) == 1
        program = seccomp.SyscallFilter(defaction=ERRNO(outer["errno"]))
        for value in outer["values"]:
            condition = is_value(outer["argument"], value)
            if value != guard["value"]:
                program.add_rule(ALLOW, number, condition)
                continue
            (only,) = inner["values"]
            program.add_rule(ALLOW, number, condition, is_value(inner["argument"], only))
            program.add_rule(ERRNO(inner["errno"]), number, condition, Arg(inner["argument"], NE, only))
    else:
        sys.exit(f"no translation for {kinds} of call {number}")
    return exported(program)


def main():
    asked = json.load(sys.stdin)
    whole = seccomp.SyscallFilter(defaction=ERRNO(asked["default"]))
    tested = {}
    for call in asked["calls"]:
        if call["tests"]:
            tested[call["number"]] = with_tests(call["number"], call["tests"])
        elif call["errno"] is None:
            whole.add_rule(ALLOW, call["number"])
        elif call["errno"] != asked["default"]:
            whole.add_rule(ERRNO(call["errno"]), call["number"])
    json.dump({"whole": exported(whole), "tested": tested}, sys.stdout)


if __name__ == "__main__":
    os.umask(0o077)
    main()
