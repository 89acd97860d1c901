# Completion of verbena(1) for bash. The words come from the command's own help, which lists the commands, the
# options and the kinds of their values.

# _verbena_options COMMAND...: prints one line per option, "KIND NAMES". KIND is the help's name of the value,
# with its choices, if any, in braces; "-" for an option without a value.
_verbena_options() {
  "$@" --help 2>/dev/null | awk '
    /^  -/ {
      spec = substr($0, 3); sub(/  .*/, "", spec)
      parts = split(spec, part, " ")
      kind = parts == 1 || part[2] ~ /^(Excludes|Needs):/ ? "-" : part[2]
      gsub(/,/, " ", part[1]); print kind, part[1]
    }'
}

_verbena_commands() {
  "$1" --help 2>/dev/null | awk '/^Subcommands:/ {inside = 1; next} /^$/ {inside = 0} inside {print $1}'
}

# Sets kind to the kind of the option's value; "" if the word is not an option.
_verbena_kind_of() { # WORD, with the options in $options
  local line
  kind=
  while read -r line; do
    case " ${line#* } " in *" $1 "*) kind=${line%% *} ;; esac
  done <<<"$options"
}

# Prints the possible values of this kind.
_verbena_values() { # KIND OF-OPTION
  case $1 in
    *'{'*) tr ',' ' ' <<<"${1//[^,]*\{/}" | tr -d '}' ;;
    FILE*) compgen -f -- "$current" ;;
    NAME*) "$verbena" devices 2>/dev/null | grep '^verbena_' ;;
  esac
}

_verbena() {
  local verbena=${COMP_WORDS[0]/#\~/$HOME} current=${COMP_WORDS[COMP_CWORD]} options kind words= i
  COMPREPLY=()
  if ((COMP_CWORD == 1)); then
    words="$(_verbena_commands "$verbena") --help --version"
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
    return
  fi
  local command=${COMP_WORDS[1]}
  options=$(_verbena_options "$verbena" "$command")
  if [ "$command" = run ]; then
    # The first word that is neither an option nor an option's value is the program.
    for ((i = 2; i <= COMP_CWORD; ++i)); do
      _verbena_kind_of "${COMP_WORDS[i]}"
      case $kind in
        '') ;;
        -) continue ;;
        *) ((++i)); continue ;;
      esac
      if [ "${COMP_WORDS[i]}" = -- ]; then ((++i)); elif [[ ${COMP_WORDS[i]} == -* ]]; then break; fi
      ((i <= COMP_CWORD)) || break
      if ((i < COMP_CWORD)) && declare -F _command_offset >/dev/null; then
        _command_offset "$i"
      elif ((i == COMP_CWORD)); then
        mapfile -t COMPREPLY < <(compgen -c -- "$current")
      else
        mapfile -t COMPREPLY < <(compgen -f -- "$current")
      fi
      return
    done
  fi
  _verbena_kind_of "${COMP_WORDS[COMP_CWORD - 1]}"
  case $kind in
    '' | -)
      if [[ $current == -* ]]; then
        words=$(cut -d ' ' -f 2- <<<"$options")
      elif [ "$command" = counters ]; then
        words=$("$verbena" counters 2>/dev/null | sed -n 's/^process \([0-9]*\):.*/\1/p')
      elif declare -F _known_hosts_real >/dev/null && [[ $command == doctor || $command == perf ]]; then
        _known_hosts_real -- "$current"
        return
      fi
      ;;
    *) words=$(_verbena_values "$kind") ;;
  esac
  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
}

complete -F _verbena verbena
