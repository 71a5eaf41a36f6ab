package staticfiles

import (
	"path"
	"strings"
)

// types are the media types of files by the ends of their names. Those that begin with text/ are in UTF-8.
var types = map[string]string{
	".html": "text/html", ".htm": "text/html", ".css": "text/css", ".js": "text/javascript", ".mjs": "text/javascript",
	".txt": "text/plain", ".md": "text/markdown", ".csv": "text/csv", ".vtt": "text/vtt", ".ics": "text/calendar",
	".json": "application/json", ".map": "application/json", ".webmanifest": "application/manifest+json",
	".xml": "application/xml", ".rss": "application/rss+xml", ".atom": "application/atom+xml",
	".wasm": "application/wasm", ".pdf": "application/pdf", ".zip": "application/zip", ".gz": "application/gzip",
	".svg": "image/svg+xml", ".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".gif": "image/gif",
	".webp": "image/webp", ".avif": "image/avif", ".ico": "image/x-icon", ".bmp": "image/bmp",
	".woff": "font/woff", ".woff2": "font/woff2", ".ttf": "font/ttf", ".otf": "font/otf",
	".eot": "application/vnd.ms-fontobject",
	".mp3": "audio/mpeg", ".m4a": "audio/mp4", ".ogg": "audio/ogg", ".wav": "audio/wav", ".flac": "audio/flac",
	".mp4": "video/mp4", ".webm": "video/webm", ".mov": "video/quicktime",
}

// TypeOf returns the media type of a file.
func TypeOf(name string) string {
	t := types[strings.ToLower(path.Ext(name))]
	switch {
	case t == "":
		return "application/octet-stream"
	case strings.HasPrefix(t, "text/"):
		return t + "; charset=utf-8"
	default:
		return t
	}
}

// IsText reports whether the contents of files with this name are worth compressing.
func IsText(name string) bool {
	t := TypeOf(name)
	return strings.HasPrefix(t, "text/") || strings.HasSuffix(t, "json") || strings.HasSuffix(t, "xml") ||
		t == "application/wasm" || t == "font/ttf" || t == "font/otf" || t == "image/bmp" || t == "image/x-icon"
}
