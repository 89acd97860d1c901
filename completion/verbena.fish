# Completion of verbena(1) for fish. The words come from the command's own help, which lists the commands, the
# options and the choices for their values.

function __verbena_commands
    verbena --help 2>/dev/null | awk '/^Subcommands:/ {inside = 1; next} /^$/ {inside = 0}
        inside {name = $1; $1 = ""; sub(/^ */, ""); print name "\t" $0}'
end

function __verbena_command
    set -l words (commandline -opc)
    set -q words[2]; and echo $words[2]
end

# Prints the options of the command, or the choices for the value of the last option.
function __verbena_options
    set -l words (commandline -opc)
    verbena (__verbena_command) --help 2>/dev/null | awk -v last=$words[-1] '
        /^  -/ {
            spec = substr($0, 3); text = spec; sub(/  .*/, "", spec)
            if (!sub(/^.*[^ ]  +/, "", text)) text = ""
            split(spec, part, " "); count = split(part[1], name, ",")
            for (i = 1; i <= count; ++i) {
                lines = lines name[i] "\t" text "\n"
                if (name[i] == last && part[2] ~ /\{/) choices = part[2]
                if (name[i] == last && part[2] ~ /^NAME/) devices = 1
            }
        }
        END {
            if (choices != "") { gsub(/.*\{|\}/, "", choices); gsub(/,/, "\n", choices); print choices }
            else if (devices) system("verbena devices | grep ^verbena_")
            else printf "%s", lines
        }'
end

complete -c verbena -f
complete -c verbena -n 'not __verbena_command' -a '(__verbena_commands)'
complete -c verbena -n 'not __verbena_command' -l help -l version
complete -c verbena -n __verbena_command -a '(__verbena_options)'
complete -c verbena -n 'contains -- (__verbena_command) run' -a '(__fish_complete_subcommand --fcs-skip=2)'
complete -c verbena -n 'contains -- (__verbena_command) doctor perf' -a '(__fish_print_hostnames)'
