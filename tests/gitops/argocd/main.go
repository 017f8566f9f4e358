// Asks Argo CD's own code for the health of objects: a JSON list on stdin, a JSON list on stdout.
// The first argument is the health script, which Argo CD gets by its settings.
package main

import (
	"encoding/json"
	"log"
	"os"

	"github.com/argoproj/argo-cd/v3/pkg/apis/application/v1alpha1"
	"github.com/argoproj/argo-cd/v3/util/lua"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func main() {
	script, err := os.ReadFile(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	overrides := lua.ResourceHealthOverrides(map[string]v1alpha1.ResourceOverride{
		"diptych.dev/Agent": {HealthLua: string(script)},
	})
	var objects []map[string]any
	if err := json.NewDecoder(os.Stdin).Decode(&objects); err != nil {
		log.Fatal(err)
	}
	told := []any{}
	for _, content := range objects {
		health, err := overrides.GetResourceHealth(&unstructured.Unstructured{Object: content})
		if err != nil {
			log.Fatal(err)
		}
		told = append(told, health)
	}
	if err := json.NewEncoder(os.Stdout).Encode(told); err != nil {
		log.Fatal(err)
	}
}
