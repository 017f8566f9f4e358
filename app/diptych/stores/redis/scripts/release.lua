#!lua flags=allow-oom
-- Releases a session. The fence becomes a token that nobody has, so that neither a late write nor a
-- late renewal can keep the session from others.
-- ARGV: prefix, session, token, message for the other processes or ''
if not refusal(ARGV[2], ARGV[3]) then
  release(ARGV[2], ARGV[3])
  redis.call('SET', key('fence', ARGV[2]), '-' .. ARGV[3], 'KEEPTTL')
  if ARGV[4] ~= '' then
    redis.call('PUBLISH', PREFIX .. ':control', ARGV[4])
  end
end
