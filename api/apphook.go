package api

// AppWebhook is where the program that hosts a repository sends its events: POST /v1/apps/{id}/webhook.
type AppWebhook struct {
	URL         string   `json:"url"`
	Secret      string   `json:"secret" doc:"Shown only once; it replaces the one before."`
	ContentType string   `json:"content_type"`
	Events      []string `json:"events"`
}
