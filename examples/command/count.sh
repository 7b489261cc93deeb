#!/bin/sh
# An agent that is a program: what it prints is its answer. It counts the words that it is sent.
exec sed 's/.*"text":"\([^"]*\)".*/\1/' | wc -w
