-- Precedes every other script. ARGV: the prefix of all keys, a method's name, its arguments.
-- Every method is idempotent: after a lost reply it is executed again.
local PREFIX = ARGV[1]
local methods = {}

local function key(kind, id)
  return PREFIX .. ':' .. kind .. ':' .. id
end

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Returns the store's epoch, and sets it if the store is empty. Also writes and publishes, so that
-- the health check fails if the server or the user's ACL does not allow that.
function methods.epoch(new)
  redis.call('SET', PREFIX .. ':epoch', new, 'NX')
  redis.call('PUBLISH', PREFIX .. ':health', '')
  return redis.call('GET', PREFIX .. ':epoch')
end
