package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/alecthomas/kong"
)

type completionCmd struct {
	Shell string `arg:"" enum:"bash,zsh,fish,powershell" help:"Shell: ${enum}. For bash: source <(trctl completion bash); for PowerShell: trctl completion powershell | Out-String | Invoke-Expression."`
}

// Run writes a script that knows all commands and flags of this build.
func (c *completionCmd) Run(p process, parser *kong.Kong) error {
	commands := completions(parser.Model)
	switch c.Shell {
	case "bash":
		return bashCompletion(p.out, commands)
	case "zsh":
		return zshCompletion(p.out, commands)
	case "powershell":
		return powershellCompletion(p.out, commands)
	}
	return fishCompletion(p.out, commands)
}

// completed is a command as a completion script sees it.
type completed struct {
	name, help string
	flags      []completedFlag
	// words are the values of the command's first argument.
	words []string
}

type completedFlag struct {
	name, help string
	short      rune
	// takes says that the flag has a value; values are the ones known.
	takes  bool
	values []string
}

func completions(app *kong.Application) []completed {
	var out []completed
	for _, n := range app.Children {
		if n.Hidden || n.Type != kong.CommandNode {
			continue
		}
		c := completed{name: n.Name, help: n.Help}
		for _, group := range n.AllFlags(true) {
			for _, f := range group {
				c.flags = append(c.flags, completedFlag{f.Name, f.Help, f.Short, !f.IsBool(), enumOf(f.Value)})
			}
		}
		for _, arg := range n.Positional {
			c.words = append(c.words, enumOf(arg)...)
		}
		if n.Name == "help" {
			c.words = append(c.words, "exit-codes")
		}
		out = append(out, c)
	}
	return out
}

func enumOf(v *kong.Value) []string {
	if v.Enum == "" {
		return nil
	}
	return v.EnumSlice()
}

// spellings are the ways to write a flag.
func (f completedFlag) spellings() []string {
	out := []string{"--" + f.name}
	if f.short != 0 {
		out = append(out, "-"+string(f.short))
	}
	return out
}

func bashCompletion(w io.Writer, commands []completed) error {
	var b strings.Builder
	var names []string
	for _, c := range commands {
		names = append(names, c.name)
	}
	b.WriteString("# bash completion of trctl\n_trctl() {\n  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}\n  COMPREPLY=()\n")
	fmt.Fprintf(&b, "  if [ \"$COMP_CWORD\" -eq 1 ]; then\n    COMPREPLY=($(compgen -W %q -- \"$cur\"))\n    return\n  fi\n", strings.Join(append(names, "--help", "--version"), " "))
	b.WriteString("  case \"${COMP_WORDS[1]} $prev\" in\n")
	for _, c := range commands {
		for _, f := range c.flags {
			if !f.takes {
				continue
			}
			var patterns []string
			for _, s := range f.spellings() {
				patterns = append(patterns, fmt.Sprintf("%q", c.name+" "+s))
			}
			reply := "COMPREPLY=($(compgen -f -- \"$cur\"))"
			if f.values != nil {
				reply = fmt.Sprintf("COMPREPLY=($(compgen -W %q -- \"$cur\"))", strings.Join(f.values, " "))
			}
			fmt.Fprintf(&b, "    %s) %s; return ;;\n", strings.Join(patterns, "|"), reply)
		}
	}
	b.WriteString("  esac\n  case \"${COMP_WORDS[1]}\" in\n")
	for _, c := range commands {
		words := append([]string{}, c.words...)
		for _, f := range c.flags {
			words = append(words, f.spellings()...)
		}
		if c.name == "help" {
			words = append(words, names...)
		}
		fmt.Fprintf(&b, "    %s) COMPREPLY=($(compgen -W %q -- \"$cur\")) ;;\n", c.name, strings.Join(words, " "))
	}
	b.WriteString("  esac\n}\ncomplete -o default -F _trctl trctl\n")
	_, err := io.WriteString(w, b.String())
	return err
}

func zshCompletion(w io.Writer, commands []completed) error {
	quote := strings.NewReplacer("'", "'\\''", "[", "\\[", "]", "\\]", ":", "\\:")
	var b strings.Builder
	b.WriteString("#compdef trctl\n_trctl() {\n  if (( CURRENT == 2 )); then\n    local -a commands=(\n")
	for _, c := range commands {
		fmt.Fprintf(&b, "      '%s:%s'\n", c.name, quote.Replace(c.help))
	}
	b.WriteString("    )\n    _describe command commands\n    return\n  fi\n  local command=$words[2]\n  shift words\n  (( CURRENT-- ))\n  case $command in\n")
	for _, c := range commands {
		fmt.Fprintf(&b, "    %s)\n      _arguments", c.name)
		for _, f := range c.flags {
			value := ""
			if f.takes {
				value = ":value:_files"
			}
			if f.values != nil {
				value = ":value:(" + strings.Join(f.values, " ") + ")"
			}
			for _, s := range f.spellings() {
				fmt.Fprintf(&b, " \\\n        '%s[%s]%s'", s, quote.Replace(f.help), value)
			}
		}
		if c.words != nil {
			fmt.Fprintf(&b, " \\\n        '1:argument:(%s)'", strings.Join(c.words, " "))
		}
		b.WriteString("\n      ;;\n")
	}
	b.WriteString("  esac\n}\nif [ \"$funcstack[1]\" = _trctl ]; then _trctl \"$@\"; else compdef _trctl trctl; fi\n")
	_, err := io.WriteString(w, b.String())
	return err
}

func fishCompletion(w io.Writer, commands []completed) error {
	quote := strings.NewReplacer("\\", "\\\\", "'", "\\'")
	var b strings.Builder
	b.WriteString("# fish completion of trctl\n")
	for _, c := range commands {
		fmt.Fprintf(&b, "complete -c trctl -n __fish_use_subcommand -f -a %s -d '%s'\n", c.name, quote.Replace(c.help))
		seen := "-n '__fish_seen_subcommand_from " + c.name + "'"
		for _, f := range c.flags {
			fmt.Fprintf(&b, "complete -c trctl %s -l %s", seen, f.name)
			if f.short != 0 {
				fmt.Fprintf(&b, " -s %c", f.short)
			}
			if f.takes {
				b.WriteString(" -r")
			}
			if f.values != nil {
				fmt.Fprintf(&b, " -f -a '%s'", strings.Join(f.values, " "))
			}
			fmt.Fprintf(&b, " -d '%s'\n", quote.Replace(f.help))
		}
		if c.words != nil {
			fmt.Fprintf(&b, "complete -c trctl %s -f -a '%s'\n", seen, strings.Join(c.words, " "))
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// powershellCompletion is for PowerShell 5 and later. Words are looked up by what stands
// before the cursor: the command, and the flag that a value is for.
func powershellCompletion(w io.Writer, commands []completed) error {
	quote := func(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
	list := func(words []string) string {
		out := make([]string, len(words))
		for i, word := range words {
			out[i] = quote(word)
		}
		return "@(" + strings.Join(out, ", ") + ")"
	}
	var b strings.Builder
	var names []string
	for _, c := range commands {
		names = append(names, c.name)
	}
	b.WriteString("# PowerShell completion of trctl\nRegister-ArgumentCompleter -Native -CommandName trctl -ScriptBlock {\n  param($word, $ast, $at)\n")
	b.WriteString("  $said = @($ast.CommandElements | Where-Object { $_.Extent.EndOffset -lt $at } | ForEach-Object { $_.Extent.Text })\n")
	b.WriteString("  $last = if ($said.Count -gt 0) { $said[-1] } else { '' }\n")
	fmt.Fprintf(&b, "  $words = %s\n  if ($said.Count -gt 1) {\n    switch -CaseSensitive ($said[1]) {\n", list(append(append([]string{}, names...), "--help", "--version")))
	for _, c := range commands {
		words := append([]string{}, c.words...)
		for _, f := range c.flags {
			words = append(words, f.spellings()...)
		}
		if c.name == "help" {
			words = append(words, names...)
		}
		fmt.Fprintf(&b, "      %s {\n        $words = %s\n", quote(c.name), list(words))
		for _, f := range c.flags {
			for _, s := range f.spellings() {
				if f.takes {
					fmt.Fprintf(&b, "        if ($last -ceq %s) { $words = %s }\n", quote(s), list(f.values))
				}
			}
		}
		b.WriteString("      }\n")
	}
	b.WriteString("      default { $words = @() }\n    }\n  }\n")
	b.WriteString("  $words | Where-Object { $_ -like \"$word*\" } | ForEach-Object { [System.Management.Automation.CompletionResult]::new($_, $_, 'ParameterValue', $_) }\n}\n")
	_, err := io.WriteString(w, b.String())
	return err
}
