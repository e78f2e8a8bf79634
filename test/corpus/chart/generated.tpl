{{- /* Each docs/N.yaml beside docs/N.json, which is what belay made of it: where does helm read them
       differently? Nothing: both are refused, or both mean the same. */ -}}
{{- $differ := list }}
{{- range $path, $_ := .Files.Glob "docs/*.yaml" }}
{{- $theirs := fromYaml ($.Files.Get $path) }}
{{- $text := $.Files.Get (printf "%s.json" (trimSuffix ".yaml" $path)) }}
{{- $refused := not (or (hasPrefix "{" $text) (eq "null" $text)) }}
{{- $ours := dict }}
{{- if not $refused }}{{ $ours = fromYaml $text }}{{ end }}
{{- if and (hasKey $theirs "Error") (not $refused) }}
{{- $differ = append $differ (printf "%s: helm refuses it (%s), belay makes %s of it" $path $theirs.Error $text) }}
{{- else if and (not (hasKey $theirs "Error")) $refused }}
{{- $differ = append $differ (printf "%s: belay refuses it, helm reads %s" $path (toJson $theirs)) }}
{{- else if and (not $refused) (ne (toJson $theirs) (toJson $ours)) }}
{{- $differ = append $differ (printf "%s: helm reads %s, and from belay %s" $path (toJson $theirs) (toJson $ours)) }}
{{- end }}
{{- end }}
compared: {{ len (.Files.Glob "docs/*.yaml") }}
differ: {{ join "\n" $differ | b64enc }}
