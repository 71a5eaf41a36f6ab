package function

import "context"

// Attend looks at all functions once, as Run does, and returns when the builds that it began have ended.
func (s *Service) Attend(ctx context.Context) {
	s.attend(ctx)
	s.builds.Wait()
}
