// Runs a health script as Argo CD v3.2 does: by the Lua interpreter that it embeds, in the versions
// of its go.mod, with as few libraries. The first argument is the script; stdin is a JSON list of
// objects, stdout one of what the script returns for each.
//
// Not here: the rest of Argo CD. Its own module takes half an hour to build on two busy cores.
package main

import (
	"encoding/json"
	"log"
	"os"

	lua "github.com/yuin/gopher-lua"
	luajson "layeh.com/gopher-json"
)

var libraries = []struct {
	name string
	open lua.LGFunction
}{
	{lua.LoadLibName, lua.OpenPackage},
	{lua.BaseLibName, lua.OpenBase},
	{lua.TabLibName, lua.OpenTable},
}

func main() {
	script, err := os.ReadFile(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	var objects []json.RawMessage
	if err := json.NewDecoder(os.Stdin).Decode(&objects); err != nil {
		log.Fatal(err)
	}
	told := []json.RawMessage{}
	for _, object := range objects {
		told = append(told, health(string(script), object))
	}
	if err := json.NewEncoder(os.Stdout).Encode(told); err != nil {
		log.Fatal(err)
	}
}

func health(script string, object []byte) json.RawMessage {
	state := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer state.Close()
	for _, library := range libraries {
		call := lua.P{Fn: state.NewFunction(library.open), NRet: 0, Protect: true}
		if err := state.CallByParam(call, lua.LString(library.name)); err != nil {
			log.Fatal(err)
		}
	}
	content, err := luajson.Decode(state, object)
	if err != nil {
		log.Fatal(err)
	}
	state.SetGlobal("obj", content)
	if err := state.DoString(script); err != nil {
		log.Fatal(err)
	}
	found, err := luajson.Encode(state.Get(-1))
	if err != nil {
		log.Fatal(err)
	}
	return found
}
