"""The drills of isotron validate may take as long to open a device as they allow, which is longer than other stages may take."""
from validating import *

SOON = ["--distributed-timeout-seconds-after-init", 1]
validate("--ranks", 2, "--seconds", 1, "--only", "hang", *SOON, program=FAULTY, FAULTY="open 0 35000")
