# Every shell script of ci/ and tools/ sources this file first: `. "$(dirname "$0")/../ci/common.sh"`. The scripts run
# in the root of the repository. The option --help prints the comment at the top of the script. An invalid argument ends
# the script with a message of one sentence and exit status 2.
script=$(realpath "$0")
called_from=$PWD
cd "$(dirname "$script")/.." || exit
script=${script#"$PWD/"}

usage() { sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$script"; }

refuse() {
  echo "$script: $*" >&2
  exit 2
}

# need TOOL...: ends the script unless this machine has all of these programs.
need() {
  local tool
  for tool; do command -v "$tool" >/dev/null || refuse "there is no $tool on this machine: install it (ci/install-deps), or set PATH"; done
}

# in_callers PATH: prints the absolute path of a command-line argument, which is relative to the caller's folder.
in_callers() { (cd "$called_from" && realpath -m "$1"); }

# at_most COUNT WORD...: ends the script if there are more than COUNT arguments.
at_most() {
  local count=$1
  shift
  [ $# -le "$count" ] || refuse "unexpected argument '${*:count + 1:1}': see $script --help"
}

# whole NAME VALUE: ends the script unless the value is an integer of at least 1.
whole() { [[ $2 =~ ^0*[1-9][0-9]{0,17}$ ]] || refuse "$1 '$2' is not a whole number of at least 1"; }

# one_of WHAT 'CHOICES' WORD...: ends the script unless each word is one of the choices.
one_of() {
  local what=$1 choices=$2 word choice
  shift 2
  for word; do
    for choice in $choices; do [ "$word" != "$choice" ] || continue 2; done
    refuse "there is no $what '$word'; there are: $choices"
  done
}

# run_steps FOLDER STEP...: runs every step, even if an earlier one failed. Step X is the function step_X. Its output is
# written to FOLDER/X.log, and status 77 means that it was skipped. The function print_verdicts prints the results and
# ends the script.
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

# built FILE: fails with a message if the build that a step needs is missing.
built() { [ -e "$1" ] || { echo "there is no $1: run $script build first"; return 1; }; }

case ${1:-} in -h | --help) usage && exit ;; esac
