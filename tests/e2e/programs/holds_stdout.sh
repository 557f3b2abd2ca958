#!/bin/sh
# The parent is done at once; its child would keep the pipe open for ten minutes.
sleep 600 &
echo $! >> "$PIDS"
echo "parent done"
