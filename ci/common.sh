# Sourced first by the scripts of ci/ and tools/ that are shell: `. "$(dirname "$0")/../ci/common.sh"`. They work in the root of the
# repository; --help prints the comment on top of the script; what is wrong is one sentence, and exit status 2.
script=$(realpath "$0")
called_from=$PWD
cd "$(dirname "$script")/.." || exit
script=${script#"$PWD/"}

usage() { sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$script"; }

refuse() {
  echo "$script: $*" >&2
  exit 2
}

# need TOOL...: they are on this machine.
need() {
  local tool
  for tool; do command -v "$tool" >/dev/null || refuse "there is no $tool on this machine: install it (ci/install-deps), or set PATH"; done
}

# in_callers PATH: a path of the command line, which is the caller's.
in_callers() { (cd "$called_from" && realpath -m "$1"); }

# at_most COUNT WORD...: there are no further words.
at_most() {
  local count=$1
  shift
  [ $# -le "$count" ] || refuse "'${*:count + 1:1}' is too much: $script --help says how it is called"
}

# whole NAME VALUE: it is a whole number of at least 1.
whole() { [[ $2 =~ ^0*[1-9][0-9]{0,17}$ ]] || refuse "$1 '$2' is not a whole number of at least 1"; }

# one_of WHAT 'CHOICES' WORD...: every word is among them.
one_of() {
  local what=$1 choices=$2 word choice
  shift 2
  for word; do
    for choice in $choices; do [ "$word" != "$choice" ] || continue 2; done
    refuse "there is no $what '$word'; there are: $choices"
  done
}

# run_steps FOLDER STEP...: every step runs, even if an earlier one failed. Step X is the function step_X and leaves its output in
# FOLDER/X.log; a status of 77 means that it was skipped. print_verdicts ends the script.
run_steps() {
  local folder=$1 step begin verdict
  shift
  mkdir -p "$folder" || exit
  verdicts='' failed=0
  for step; do
    printf '\n==== %s\n' "$step"
    begin=$SECONDS
    "step_$step" </dev/null 2>&1 | tee "$folder/$step.log"
    case ${PIPESTATUS[0]} in 0) verdict=pass ;; 77) verdict=skipped ;; *) verdict=FAIL failed=1 ;; esac
    verdicts+=$(printf '%-10s %-8s %4d s  %s' "$step" "$verdict" $((SECONDS - begin)) "$(tail -n 1 "$folder/$step.log" | cut -c 1-90)")$'\n'
  done
}
print_verdicts() {
  printf '\n==== verdicts (%d s)\n%s' "$SECONDS" "$verdicts"
  exit $failed
}

# built FILE: what a step needs is there.
built() { [ -e "$1" ] || { echo "there is no $1: $script build comes first"; return 1; }; }

case ${1:-} in -h | --help) usage && exit ;; esac
