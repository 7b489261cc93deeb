"""Runs the tools of the skill: a request on stdin, the result on stdout."""

import json
import random
import sys

request = json.load(sys.stdin)
wanted = request["input"]
rolled = [random.randint(1, wanted["sides"]) for _ in range(wanted.get("count", 1))]
print(json.dumps({"rolled": rolled, "sum": sum(rolled)}))
