"""Lets its secret out in every form it knows, and dies of it. Notes the forms where only the test looks."""
import base64
import os
import sys
import time
import urllib.parse

secret = os.environ["API_KEY"]
forms = [
    secret,
    base64.b64encode(secret.encode()).decode(),
    base64.b64encode(b"user:" + secret.encode()).decode(),
    urllib.parse.quote(secret, safe=""),
]
with open(os.environ["PIDS"] + ".forms", "w") as book:
    book.write("\n".join(forms))
for form in forms:
    print("here it is:", form, flush=True)
half = len(secret) // 2
os.write(1, f"in two pieces: {secret[:half]}".encode())
time.sleep(0.2)
os.write(1, f"{secret[half:]}\n".encode())
open(f"note_{secret.split('/')[0]}.txt", "w").close()
sys.stderr.write(f"warning: {secret}\n")
raise ValueError("not accepted: " + secret)
