package httpapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/pandastack/pandastack/api"
)

// Spec returns the OpenAPI 3.1 document of all routes, as indented JSON.
func Spec(version string) ([]byte, error) {
	doc := &huma.OpenAPI{
		OpenAPI: "3.1.0",
		Info: &huma.Info{
			Title: "PandaStack", Version: version,
			Description: "Sandboxes for untrusted code. Every response that is not 2xx is an Error.",
			License:     &huma.License{Name: "Apache-2.0", Identifier: "Apache-2.0"},
		},
		Components: &huma.Components{
			Schemas: huma.NewMapRegistry("#/components/schemas/", schemaName),
			SecuritySchemes: map[string]*huma.SecurityScheme{
				"key": {Type: "http", Scheme: "bearer", Description: "An API key, pds_ and 32 digits."},
			},
		},
	}
	for _, rt := range routes() {
		if rt.alias {
			continue
		}
		methods := []string{rt.method}
		if rt.method == "" {
			methods = []string{"GET", "POST", "PUT", "PATCH", "DELETE"}
		}
		for _, m := range methods {
			doc.AddOperation(operation(doc.Components.Schemas, rt, m))
		}
	}
	b, err := json.MarshalIndent(doc, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("openapi document: %w", err)
	}
	return append(b, '\n'), nil
}

var pathParam = regexp.MustCompile(`\{(\w+)(\.\.\.)?\}`)

// publishedNames are the schema names that the OpenAPI document has published for types that have another name in Go.
var publishedNames = map[string]string{
	"ForkResponse":   "ForkAnswer",
	"GuestStats":     "Inside",
	"HostUsage":      "Worked",
	"Injected":       "Surroundings",
	"StatusResponse": "StatusAnswer",
	"TransferResult": "SnapshotMove",
}

// schemaName returns the name of a type in the OpenAPI document.
func schemaName(t reflect.Type, hint string) string {
	name := huma.DefaultSchemaNamer(t, hint)
	if published, ok := publishedNames[name]; ok {
		return published
	}
	return name
}

func operation(reg huma.Registry, rt route, method string) *huma.Operation {
	op := &huma.Operation{
		OperationID: operationID(rt, method), Method: method,
		Path:    pathParam.ReplaceAllString(rt.pattern, "{$1}"),
		Summary: rt.summary, Tags: []string{rt.tag},
		Responses: map[string]*huma.Response{},
	}
	for _, m := range pathParam.FindAllStringSubmatch(rt.pattern, -1) {
		op.Parameters = append(
			op.Parameters,
			&huma.Param{Name: m[1], In: "path", Required: true, Schema: &huma.Schema{Type: "string"}},
		)
	}
	for _, q := range rt.query {
		op.Parameters = append(op.Parameters, &huma.Param{
			Name: q.name, In: "query", Description: q.doc, Required: q.name == "path",
			Schema: &huma.Schema{Type: q.kind},
		})
	}
	if !rt.isPublic() {
		op.Security = []map[string][]string{{"key": {}}}
	}
	switch scope, ok := rt.need.Scope(); {
	case scope == api.ScopeMetrics || scope == api.ScopeNode:
		op.Description = "Needs an operator's key with the scope " + string(scope) + "."
	case ok:
		op.Description = "Needs the scope " + string(scope) + "."
	}
	if rt.in != nil {
		op.RequestBody = &huma.RequestBody{Content: jsonOf(reg, rt.in), Required: rt.pattern == sandboxPath+"/exec"}
	} else if rt.takes != "" {
		op.RequestBody = &huma.RequestBody{Content: binary(rt.takes), Required: true}
	}
	op.Responses[strconv.Itoa(status(rt))] = answerOf(reg, rt)
	op.Responses["default"] = &huma.Response{
		Description: "An error",
		Content:     jsonOf(reg, reflect.TypeFor[api.Error]()),
	}
	return op
}

func status(rt route) int {
	if rt.gives == ws {
		return http.StatusSwitchingProtocols
	}
	return rt.status
}

func answerOf(reg huma.Registry, rt route) *huma.Response {
	res := &huma.Response{Description: http.StatusText(status(rt))}
	switch {
	case rt.out != nil:
		res.Content = jsonOf(reg, rt.out)
	case rt.gives == octets || rt.gives == "*/*":
		res.Content = binary(rt.gives)
	case rt.gives != "" && rt.gives != ws:
		res.Content = map[string]*huma.MediaType{rt.gives: {Schema: &huma.Schema{Type: "string"}}}
	}
	return res
}

func jsonOf(reg huma.Registry, t reflect.Type) map[string]*huma.MediaType {
	return map[string]*huma.MediaType{"application/json": {Schema: reg.Schema(t, true, t.Name())}}
}

func binary(media string) map[string]*huma.MediaType {
	return map[string]*huma.MediaType{media: {Schema: &huma.Schema{Type: "string", Format: "binary"}}}
}

// operationID is the method and the words of the path, such as post-sandboxes-sandbox-fork.
func operationID(rt route, method string) string {
	words := strings.FieldsFunc(
		strings.TrimPrefix(rt.pattern, "/v1"),
		func(r rune) bool { return strings.ContainsRune("/{}.", r) },
	)
	return strings.ToLower(method + "-" + strings.Join(words, "-"))
}
