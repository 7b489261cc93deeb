"""An agent that is a program: it asks one question and sends a receipt. Needs Python alone."""

import json
import sys


def write(**line: object) -> None:
    print(json.dumps(line), flush=True)


message = json.loads(sys.stdin.readline())
order = message["state"]
if order is None:
    item = message["text"]
    write(type="ask", question=f"How many {item} shall it be?", state={"item": item})
elif not message["text"].isdigit():
    write(type="decline", message="that is not a number", state=None)
else:
    write(type="progress", message="packing")
    receipt = f"{message['text']} x {order['item']}"
    write(type="artifact", name="receipt.txt", content=receipt)
    write(type="result", content={"ordered": receipt}, state=None)
