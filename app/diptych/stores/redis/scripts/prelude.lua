-- Put before every other script. ARGV is the prefix of all keys, a method's name, its arguments.
-- Every method has the same effect when it is executed twice: a lost reply makes it run again.
local PREFIX = ARGV[1]
local methods = {}

local function key(kind, id)
  return PREFIX .. ':' .. kind .. ':' .. id
end

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- The name of this store's life; set when the store is empty. It writes and publishes on
-- purpose: a server that refuses that, or a user who may not, fails the health check.
function methods.epoch(new)
  redis.call('SET', PREFIX .. ':epoch', new, 'NX')
  redis.call('PUBLISH', PREFIX .. ':health', '')
  return redis.call('GET', PREFIX .. ':epoch')
end
