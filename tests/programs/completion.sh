#!/bin/bash
# Shell completion offers every command, every option of each, and their values. The manual explains them all.
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"
need awk
enter_namespace "$@"
PATH=$build:$PATH

# The commands in the help, found independently of the completion.
commands=$(verbena --help | sed -n '/^Subcommands:/,/^$/p' | awk 'NF > 1 && !/^Subcommands/ {print $1}' | sort)
options_of() { verbena "$1" --help | grep -oE '^  (-[a-z],)?--[a-z-]+' | tr ', ' '\n' | grep . | sort; }
[ "$(wc -w <<<"$commands")" -ge 6 ] || fail "too few commands: $commands"

# --- bash
# shellcheck source=../../completion/verbena.bash
. "$root/completion/verbena.bash"
offers() { # WORDS...: the sorted completions of the last word
  COMP_WORDS=("$@")
  COMP_CWORD=$(($# - 1))
  _verbena
  printf '%s\n' "${COMPREPLY[@]}" | sort -u
}
[ "$(offers verbena '')" = "$(printf '%s\n' $commands --help --version | sort)" ] || fail "bash: commands"
[ "$(offers verbena ru)" = run ] || fail "bash: ru is not completed to run"
for command in $commands; do
  [ -n "$(options_of "$command")" ] || fail "$command --help lists no options"
  [ "$(offers verbena "$command" -)" = "$(options_of "$command")" ] ||
    fail "bash: options of $command: $(offers verbena "$command" - | tr '\n' ' ')"
done
[ "$(offers verbena run --log '')" = "$(printf '%s\n' debug error info silent warning)" ] || fail "bash: levels"
[ "$(offers verbena run -l in)" = info ] || fail "bash: a level"
[ "$(offers verbena run --device '')" = verbena_lo ] || fail "bash: devices"
touch "$work/a_capture"
[ "$(offers verbena run --pcap "$work/a_ca")" = "$work/a_capture" ] || fail "bash: files"
[ "$(offers verbena run --log info ibv_devinf)" = ibv_devinfo ] || [ -z "$(command -v ibv_devinfo)" ] ||
  fail "bash: programs"
[ "$(offers verbena run -- unshar)" = unshare ] || fail "bash: programs after --"
[ "$(offers verbena run --log info -- cat "$work/a_ca")" = "$work/a_capture" ] || fail "bash: a program's arguments"
note "ok bash"

# --- fish and zsh, if they are installed
if command -v fish >/dev/null; then
  tab() { HOME=$work fish -N -c "source '$root/completion/verbena.fish'; complete -C '$*'" | cut -f 1 | sort -u; }
  for command in $commands; do tab 'verbena ' | grep -qx "$command" || fail "fish: no $command"; done
  for command in $commands; do
    [ "$(tab "verbena $command -" | grep '^-')" = "$(options_of "$command")" ] ||
      fail "fish: options of $command: $(tab "verbena $command -" | tr '\n' ' ')"
  done
  [ "$(tab 'verbena env --log in')" = info ] || fail "fish: a level: $(tab 'verbena env --log in')"
  note "ok fish"
else
  note "fish is not installed"
fi
if command -v zsh >/dev/null; then
  # Replaces the completion system and prints its input.
  tab() {
    zsh -f -c '
      _describe() { print -l -- ${${(P)2}%%:*} }
      _files() { print files }
      _hosts() { print hosts }
      _command_names() { print programs }
      words=("$@"); CURRENT=$#
      source "$0"' "$root/completion/_verbena" "$@" | sort
  }
  [ "$(tab verbena '')" = "$(printf '%s\n' $commands --help --version | sort)" ] || fail "zsh: commands"
  for command in $commands; do
    [ "$(tab verbena "$command" -)" = "$(options_of "$command")" ] ||
      fail "zsh: options of $command: $(tab verbena "$command" - | tr '\n' ' ')"
  done
  [ "$(tab verbena run --log '')" = "$(printf '%s\n' debug error info silent warning)" ] || fail "zsh: levels"
  [ "$(tab verbena run --pcap '') $(tab verbena run i) $(tab verbena doctor h)" = "files programs hosts" ] ||
    fail "zsh: files, programs or hosts"
  [ "$(tab verbena run -d '')" = verbena_lo ] || fail "zsh: devices"
  note "ok zsh"
else
  note "zsh is not installed"
fi

# --- the manual
manual=$(sed 's/\\-/-/g' "$root/man/verbena.1")
for command in $commands; do
  grep -q "^\.SS verbena $command\$" <<<"$manual" || fail "the manual does not explain verbena $command"
  for option in $(options_of "$command"); do
    [ "$option" = -h ] || [ "$option" = --help ] || grep -qF -- "$option" <<<"$manual" ||
      fail "the manual does not explain $option of verbena $command"
  done
done
note "ok the manual"
pass
