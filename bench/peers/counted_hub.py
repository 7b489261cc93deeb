"""The hub, with the statements counted that it executes on its tasks.

usage: counted_hub.py COUNTS ARGUMENT...
"""

import runpy
import sqlite3
import sys
from pathlib import Path

from counting import Count

count = Count(sys.argv.pop(1))
connect = sqlite3.connect


def counted(database, *arguments, **options):
    opened = connect(database, *arguments, **options)
    if Path(database).name == "tasks.db":
        opened.set_trace_callback(count)
    return opened


sqlite3.connect = counted
runpy.run_module("dragoman", run_name="__main__", alter_sys=True)
